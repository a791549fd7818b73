"""Parties on hosts of their own, and a stranger who records all that passes the switch."""

import json
import os
import signal
import subprocess
import sys

import pytest

from edl_horovod.files.whole_file import read_json
from edl_horovod.job import events
from tests import logs
from tests.later import LATER
from tests.netns.job import REPOSITORY, VARIABLES
from tests.netns.lab import Host
from tests.waiting import wait_until

if LATER:
    from tests.integration.test_federated import write_data

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

PARTIES = ("planted-marker-north", "planted-marker-south")
RECORDER = """
import socket, sys
SO_RCVBUFFORCE = 33  # Of asm-generic/socket.h; `socket` does not name it.
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    print("ready", flush=True)
    while packet := packets.recv(1 << 17):
        file.write(packet)
"""


class Recorder:
    """Records all packets that pass a switch."""

    def __init__(self, lab, path):
        self._path = path
        command = ["ip", "netns", "exec", lab.switch, sys.executable, "-c", RECORDER, str(path)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "ready\n"

    def end(self):
        self._process.kill()
        self._process.communicate()
        return self._path.read_bytes()


class Federation:
    """A coordinator and two parties, each on a host, that train until they may hurry."""

    def __init__(self, lab, folder, *settings):
        self.folder, self._settings, self._jobs = folder, settings, {}
        self._data = {party: write_data(folder / "data", party, 48) for party in PARTIES}
        self.hosts = {party: lab.host() for party in ("federation", *PARTIES)}
        self._address = f"{self.hosts['federation'].address}:7100"
        names = f"federated.parties=[{','.join(PARTIES)}]"
        options = [names, "federated.min_parties=1", f"federated.listen={self._address}"]
        self._start("federation", "federate", *options)

    def _start(self, name, verb, *arguments):
        job_dir = self.folder / f"{name}.job"
        command = [sys.executable, "-m", "edl_horovod", verb, f"job_dir={job_dir}"]
        log = self.folder / f"{name}.printed"
        settings = [*arguments, *self._settings]
        self._jobs[name] = self.hosts[name].start(*command, *settings, log=log, **VARIABLES)

    def join(self, party):
        token = self.folder / "federation.job" / "tokens" / f"{party}.token"
        wait_until(token.exists, "a token", describe=self.describe)
        self._start(
            party,
            "party",
            *("--join", self._address, "--party-token", str(token)),
            "model_def=curve",
            f"model_zoo={REPOSITORY / 'tests' / 'zoo'}",
            f"data={self._data[party]}",
            f"output={self.folder / party}",
            f"params.slow_until={self.folder / 'hurry'}",
            "launch.threads_per_rank=1",
            "train.batch_size=12",
            # The later ones last longer, unless the test is over.
            "params.slower_after=900",
            "federated.rounds=160",
            "checkpoint.every_steps=1",
            "checkpoint.keep=160",
        )

    def join_all(self):
        """Let all parties join; returns the generation of the ring that they train in."""
        for party in PARTIES:
            self.join(party)
        self.wait_for_step(PARTIES[0], 1)
        return self.wait_for_ring(len(PARTIES), 0)

    def events(self, name, kind):
        recorded_events = events.read(self.folder / f"{name}.job" / "events.jsonl")
        return [recorded.event for recorded in recorded_events if recorded.event.kind == kind]

    def wait_for_step(self, party, step):
        def is_there():
            assert self._jobs[party].poll() is None, self.describe()
            return any(event.step >= step for event in self.events(party, "step"))

        # The first ring waits half a minute for all parties.
        name = f"round {step} of {party}"
        wait_until(is_there, name, seconds=150, describe=self.describe)

    def wait_for_ring(self, size, after):
        def rings():
            return [e for e in self.events("federation", "generation") if e.is_formed]

        wait_until(
            lambda: rings()[-1].size == size and rings()[-1].generation > after,
            f"a ring of {size}",
            seconds=150,
            describe=self.describe,
        )
        return rings()[-1].generation

    def succeed(self):
        (self.folder / "hurry").touch()
        for name, process in self._jobs.items():
            assert process.wait(120) == 0, f"{name}\n{self.describe()}"
        outcome = read_json(self.folder / "federation.job" / "result.json", dict, hint="")
        assert outcome["state"] == "finished"

    def weights(self, party):
        """The bytes of the weights after each round, but for values too short to be a marker."""
        kernels = []
        for path in (self.folder / f"{party}.job").rglob("step-*.safetensors"):
            safetensors = path.read_bytes()
            start = 8 + int.from_bytes(safetensors[:8], "little")
            for name, entry in json.loads(safetensors[8:start]).items():
                if name != "__metadata__" and "kernel" in name:
                    first, last = entry["data_offsets"]
                    kernels.append(safetensors[start + first : start + last])
        assert any(len(kernel) >= 64 for kernel in kernels)
        return [kernel for kernel in kernels if len(kernel) >= 64 and any(kernel)]

    def describe(self):
        return logs.page([*self.folder.glob("*.printed"), *self.folder.glob("*.job/logs/*")])


@pytest.mark.parametrize("is_encrypted", [True, False], ids=["TLS", "bare"])
def test_a_stranger_sees_neither_weights_nor_names_unless_it_is_bare(lab, tmp_path, is_encrypted):
    recorder = Recorder(lab, tmp_path / "packets")
    bare = f"federated.unencrypted={str(not is_encrypted).lower()}"
    federation = Federation(lab, tmp_path, bare)
    north, south = PARTIES
    federation.join(north)
    federation.wait_for_step(north, 1)
    federation.join(south)  # It gets the weights from the other.
    federation.wait_for_step(south, 3)
    federation.succeed()
    packets = recorder.end()

    assert len(packets) > 100_000
    seen = {
        "names": b"planted-marker" in packets,
        "messages": b'"kind":"hello"' in packets,
        "weights": any(kernel in packets for kernel in federation.weights(north)),
        "records": b"note-of" in packets or b"folder-of" in packets,
        # Parties compare theirs as numbers.
        "settings": b"learning_rate" in packets,
    }
    is_seen = not is_encrypted
    expected = dict.fromkeys(("names", "messages", "weights"), is_seen)
    assert seen == {**expected, "records": False, "settings": False}


def stop_all(host):
    for pid in host.pids():
        os.kill(pid, signal.SIGSTOP)


def let_all_go_on(host):
    for pid in host.pids():
        os.kill(pid, signal.SIGCONT)


LOSSES = {
    "host hangs": (stop_all, let_all_go_on, ["elastic.forming_seconds=3"]),
    "link is cut": (Host.cut, Host.mend, []),
    # As by a router that starts again; the party needs no help to come back.
    "machine gets another address": (lambda host: host.move_to("10.77.0.77"), lambda _: None, []),
}


@pytest.mark.parametrize(("lose", "mend", "settings"), LOSSES.values(), ids=LOSSES)
def test_a_party_that_is_lost_costs_the_others_no_round_and_comes_back(
    lab, tmp_path, lose, mend, settings
):
    federation = Federation(lab, tmp_path, *settings)
    north, south = PARTIES
    generation = federation.join_all()
    lose(federation.hosts[south])
    generation = federation.wait_for_ring(1, generation)
    federation.wait_for_step(north, federation.events(north, "step")[-1].step + 1)
    mend(federation.hosts[south])
    federation.wait_for_ring(2, generation)
    federation.succeed()
