"""Federated trainings as their operators start them: a coordinator, and parties with own data."""

import json
import os
import re
import signal
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.coordinator import tokens
from edl_horovod.files.whole_file import read_json
from edl_horovod.job.directory import JobDir
from edl_horovod.records.chunks import Codec
from edl_horovod.records.sources.recordio import Writer
from edl_horovod.ring.checkpoint import read_tensors
from edl_horovod.trained_model.params import read_params
from tests.integration.conftest import ZOO, Job, edl, for_framework
from tests.later import LATER
from tests.ports import free_port
from tests.records import example
from tests.waiting import wait_until

if LATER:
    from sklearn.datasets import load_digits

PARTIES = {"north": 96, "south": 60, "west": 144}
"""Records of the parties."""
ROUNDS = 6


def write_data(folder, party, count, *, value=1.0):
    """Records of a party, in files and with texts whose names nobody else may see."""
    folder = folder / f"folder-of-{party}"
    folder.mkdir(parents=True)
    random = np.random.default_rng(count)
    with Writer(folder / "part.recordio", codec=Codec.NONE) as writer:
        for number in range(count):
            x = random.normal(size=4).astype(np.float32)
            y = np.float32(value * x.sum())
            note = f"note-of-{party}".encode()
            writer.write(example(id=[number], x=x, y=[y], note=[note]))
    return str(folder / "*.recordio")


class Federation:
    """A coordinator and parties, each a command of its own."""

    def __init__(self, folder, framework, *settings):
        self.folder, self._framework = folder, framework
        self.jobs, self.parties, self.port = [], {}, free_port()
        self.coordinate(*settings)

    def coordinate(self, *settings):
        command = [sys.executable, "-m", "edl_horovod", "federate"]
        command += [f"job_dir={self.folder}/federation", f"federated.parties=[{','.join(PARTIES)}]"]
        command += [f"federated.listen=127.0.0.1:{self.port}", *settings]
        self.coordinator = self._start(command, self.folder / "federation")
        for party in PARTIES:
            self.coordinator.wait_for(lambda _, p=party: self.token(p).exists(), "the tokens")

    def token(self, party):
        return self.folder / "federation" / "tokens" / f"{party}.token"

    def join(self, party, *settings, token=None, data=None, name=None):
        name = name or party
        values = dict(text.partition("=")[::2] for text in settings)
        defaults = {
            "model_def": "curve",
            "model_zoo": ZOO,
            "data": data or f"{self.folder}/data/folder-of-{party}/*.recordio",
            "output": f"{self.folder}/{name}",
            "job_dir": f"{self.folder}/{name}.job",
            "launch.threads_per_rank": "1",
            "train.batch_size": "12",
            "federated.rounds": ROUNDS,
            "checkpoint.every_steps": "1",
        }
        settings = [*(f"{k}={v}" for k, v in defaults.items() if k not in values), *settings]
        command = [sys.executable, "-m", "edl_horovod", "party"]
        command += [
            "--join",
            f"127.0.0.1:{self.port}",
            "--party-token",
            str(token or self.token(party)),
        ]
        command += for_framework(self._framework, settings)
        self.parties[name] = self._start(command, self.folder / f"{name}.job")
        return self.parties[name]

    def join_all(self, *settings):
        return [self.join(party, *settings) for party in PARTIES]

    def wait_for_step(self, party, step):
        self.parties[party].wait_for_step(step)

    def members(self):
        return [sorted(e.event.members) for e in self.coordinator.events("generation")]

    def succeed(self, *names):
        for name in names or self.parties:
            self.parties[name].succeed()
        self.coordinator.succeed()

    def weights(self, name):
        return dict(read_params(trained_model.read(self.folder / name).params_files))

    def assert_same_weights(self, *names):
        first = self.weights(names[0])
        for name in names[1:]:
            others = self.weights(name)
            assert sorted(others) == sorted(first)
            for variable, weight in others.items():
                np.testing.assert_array_equal(weight, first[variable], err_msg=f"{name} {variable}")

    def _start(self, command, job_dir):
        job = Job(command, job_dir)
        self.jobs.append(job)
        return job

    def close(self):
        for job in reversed(self.jobs):
            job.close()


@pytest.fixture
def federation(tmp_path, framework, request):
    """A coordinator without parties; a parameter has more of its settings."""
    for party, count in PARTIES.items():
        write_data(tmp_path / "data", party, count, value=1 + count / 100)
    federation = Federation(tmp_path, framework, *getattr(request, "param", ()))
    yield federation
    federation.close()


def files_of(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


@pytest.mark.long
@pytest.mark.timeout(240)
def test_parties_train_one_model_and_keep_their_records_and_paths_to_themselves(federation):
    folder = federation.folder
    federation.join_all(f"validation_data={folder}/data/folder-of-south/*.recordio")
    federation.succeed()

    federation.assert_same_weights(*PARTIES)
    for party, count in PARTIES.items():
        steps = federation.parties[party].events("step")
        assert steps[-1].event.step == ROUNDS
        assert steps[-1].event.records_seen == ROUNDS * count
        assert steps[-1].event.loss < steps[0].event.loss
    evaluations = [job.events("evaluation") for job in federation.parties.values()]
    metrics = [[e.event.metrics for e in recorded] for recorded in evaluations]
    assert len(metrics[0]) == ROUNDS
    assert metrics[0] == metrics[1] == metrics[2]
    for party in ("north", "west"):
        marks = [f"{mark}-of-{party}".encode() for mark in ("note", "folder")]
        files = files_of(folder / f"{party}.job")
        assert any(marks[1] in path.read_bytes() for path in files)
        for other in {*PARTIES, "federation"} - {party}:
            paths = [*files_of(folder / f"{other}.job"), *files_of(folder / other)]
            paths.append(federation.jobs[0].output_path)
            for path in paths:
                content = path.read_bytes()
                assert not any(mark in content for mark in marks), path


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_killed_party_comes_back_and_the_others_lose_nothing(federation):
    slow = federation.folder / "hurry"
    federation.join_all(f"params.slow_until={slow}", "federated.rounds=60")
    for party in PARTIES:
        federation.wait_for_step(party, 1)
    west = federation.parties["west"]
    size = len(federation.members())
    west.process.send_signal(signal.SIGKILL)  # With it go its workers.
    west.process.wait()
    wait_until(
        lambda: any(len(members) == 2 for members in federation.members()[size:]),
        "a ring of two",
        describe=federation.coordinator.describe,
    )
    at = federation.parties["north"].events("step")[-1].event.step
    federation.wait_for_step("north", at + 1)
    federation.join("west", f"params.slow_until={slow}", "federated.rounds=60", "resume=auto")
    wait_until(
        lambda: len(federation.members()[-1]) == 3,
        "a ring of three",
        describe=federation.coordinator.describe,
    )
    slow.touch()
    federation.succeed()
    federation.assert_same_weights(*PARTIES)


@pytest.mark.further
@pytest.mark.timeout(240)
def test_a_training_that_all_left_goes_on_where_it_was(federation):
    slow = federation.folder / "hurry"
    federation.join_all(f"params.slow_until={slow}")
    for party in PARTIES:
        federation.wait_for_step(party, 2)
    for job in federation.jobs:
        job.process.send_signal(signal.SIGINT)
    for job in federation.jobs:
        job.end()
    slow.touch()
    federation.coordinate("overwrite=true")
    federation.join_all(f"params.slow_until={slow}", "resume=auto")
    federation.succeed()
    federation.assert_same_weights(*PARTIES)
    resumed = [job.events("reset")[0].event.step for job in federation.parties.values()]
    assert max(resumed) >= 2


@pytest.mark.further
@pytest.mark.timeout(240)
def test_variables_of_a_party_stay_on_its_disk_and_come_back_with_it(federation, framework):
    """Its output layer is its own, through a kill of the party and through the end of all."""
    folder, hurry = federation.folder, federation.folder / "hurry"
    head = {"keras": "dense_1/*", "torch": "output.*"}[framework]
    settings = [f"params.slow_until={hurry}", f"federated.local_variables=[{head}]"]
    settings += ["federated.rounds=200", "checkpoint.every_steps=0", "checkpoint.every_seconds=0"]

    def own_file(party):
        return folder / f"{party}.job" / "checkpoints" / "local.safetensors"

    federation.join_all(*settings)
    for party in PARTIES:
        federation.wait_for_step(party, 2)
    west = federation.parties["west"]
    west.process.send_signal(signal.SIGKILL)  # With it go its workers.
    west.process.wait()
    before = read_tensors(own_file("west"))[0]
    assert any(value.any() for value in before.values())
    at = federation.parties["north"].events("step")[-1].event.step
    federation.wait_for_step("north", at + 1)
    federation.join("west", *settings, "resume=auto")
    federation.wait_for_step("west", at + 2)
    log = (folder / "west.job" / "logs").glob("*")
    assert any("restored federated" in path.read_text() for path in log)
    hurry.touch()
    federation.succeed()

    weights = {party: federation.weights(party) for party in PARTIES}
    for name, value in weights["north"].items():
        is_own = fnmatch(name, head)
        for other in ("south", "west"):
            assert np.array_equal(weights[other][name], value) != is_own, name
    # No other party and not the coordinator has its values, in whatever file.
    marks = {p: next(iter(read_tensors(own_file(p))[0].values())).tobytes() for p in PARTIES}
    for party in PARTIES:
        for other in {*PARTIES, "federation"} - {party}:
            for path in (*files_of(folder / f"{other}.job"), *files_of(folder / other)):
                assert marks[party] not in path.read_bytes(), path


@pytest.mark.further
@pytest.mark.timeout(240)
def test_a_straggler_a_table_by_consent_and_bad_validation_data(federation):
    folder, hurry = federation.folder, federation.folder / "hurry"
    held_out = f"validation_data={folder}/data/folder-of-south/*.recordio"
    bad = write_data(folder / "bad", "south", 60, value=float("nan"))
    settings = [f"params.slow_until={hurry}", "federated.rounds=200"]
    federation.join("north", *settings, held_out, "federated.share_metrics=true")
    # 144 records are 12 local steps, each of which takes a while at this pace.
    federation.join("west", *settings, held_out, "federated.round_seconds=0.1")
    federation.join("south", *settings, f"validation_data={bad}")
    south = federation.parties["south"]
    assert south.end() == 21, south.describe()
    assert "'south'" in south.printed
    assert "validation_data" in south.printed
    federation.wait_for_step("west", 2)
    assert all(e.event.local_steps < 12 for e in federation.parties["west"].events("step"))
    status = edl("status", f"{folder}/west.job")
    assert "local steps" in status
    hurry.touch()
    federation.succeed("north", "west")
    federation.assert_same_weights("north", "west")
    for party in ("north", "west"):
        evaluations = federation.parties[party].events("evaluation")
        assert all(np.isfinite(list(e.event.metrics.values())).all() for e in evaluations)
        assert all(set(e.event.parties or {}) <= {"north"} for e in evaluations)
        assert list(evaluations[-1].event.parties) == ["north"]
        assert re.search("metrics .*north", edl("status", f"{folder}/{party}.job"))


@pytest.mark.further
@pytest.mark.timeout(300)
def test_parties_that_do_not_fit_are_told_why_and_the_others_go_on(federation):
    folder = federation.folder
    slow = folder / "hurry"
    settings = [f"params.slow_until={slow}", "federated.rounds=300"]
    for party in ("north", "south"):
        federation.join(party, *settings)
    for party in ("north", "south"):
        federation.wait_for_step(party, 1)

    twin = federation.join("south", *settings, name="twin")
    assert twin.end() == 21, twin.describe()
    assert "'south' takes" in twin.printed
    other = federation.join("west", *settings, "params.width=17", name="other")
    assert other.end() == 21, other.describe()
    assert "'west' does" in other.printed
    assert "17" in other.printed
    bad = write_data(folder / "bad", "west", 60, value=float("nan"))
    broken = federation.join("west", *settings, data=bad, name="broken")
    assert broken.end() == 21, broken.describe()
    assert "'west'" in broken.printed
    assert "not finite" in broken.printed
    tokens.issue(folder / "elsewhere", ["west"])
    token = folder / "elsewhere" / "west.token"
    stranger = federation.join("west", *settings, token=token, name="stranger")
    assert stranger.end() == 2, stranger.describe()
    assert "'west'" in stranger.printed
    assert "this training" in stranger.printed
    assert str(token) in stranger.printed
    for name in ("twin", "other", "broken", "stranger"):
        assert not (folder / name).exists()

    slow.touch()
    federation.succeed("north", "south")
    federation.assert_same_weights("north", "south")
    messages = " ".join(e.event.message for e in federation.coordinator.events("worker"))
    assert "not finite" in messages
    assert "part already" not in messages
    logged = " ".join(e.event.message for e in federation.coordinator.events("log"))
    assert "part already" in logged
    result = read_json(folder / "federation" / "result.json", dict, hint="")
    assert result["state"] == "finished"
    assert result["output"] == ""


def kill_in_next_sum(job):
    """Kill a party's worker soon after it has begun to send its part of a round's sum."""
    note = JobDir(job.job_dir).secure_round
    wait_until(note.exists, "the first sum", describe=job.describe)
    pid = [e.event.pid for e in job.events("worker") if e.event.state == "started"][-1]
    before, deadline = note.stat().st_mtime_ns, time.monotonic() + 60
    while note.stat().st_mtime_ns == before:
        assert time.monotonic() < deadline, job.describe()
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)


def skipped_rounds(job):
    messages = [e.event.message for e in job.events("log")]
    return [message.split()[1] for message in messages if "is skipped" in message]


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "federation", [["federated.min_parties=3", "federated.secure_sums=true"]], indirect=True
)
def test_parties_with_secure_sums_evaluate_on_the_examples_of_all(federation):
    for party in PARTIES:
        held_out = f"validation_data={federation.folder}/data/folder-of-{party}/*.recordio"
        federation.join(party, held_out, "federated.secure_sums=true", "federated.rounds=3")
    federation.succeed()
    lists = [job.events("evaluation") for job in federation.parties.values()]
    seen = [[(e.event.step, e.event.examples, e.event.metrics) for e in of_one] for of_one in lists]
    assert seen[0] == seen[1] == seen[2]
    assert [(step, examples) for step, examples, _ in seen[0]] == [
        (step, sum(PARTIES.values())) for step in (1, 2, 3)
    ]
    assert seen[0][-1][2]["loss"] < seen[0][0][2]["loss"]
    assert not any(skipped_rounds(job) for job in federation.parties.values())


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "federation", [["federated.min_parties=3", "federated.secure_sums=true"]], indirect=True
)
def test_a_party_killed_in_a_secure_sum_costs_all_the_round_and_comes_back(federation):
    # A large model, so that the sum takes long enough to be broken.
    settings = ["params.width=1000000", "train.learning_rate=1e-6", "federated.secure_sums=true"]
    jobs = federation.join_all(*settings, "federated.rounds=12", "federated.local_steps=1")
    for _ in range(5):  # The sum may be over when the signal arrives.
        rings = len(federation.members())
        kill_in_next_sum(federation.parties["west"])
        wait_until(
            lambda before=rings: len(federation.members()) > before,
            "a ring with the party that has come back",
            describe=federation.coordinator.describe,
        )
        step = max(e.event.step for e in jobs[0].events("step"))
        federation.wait_for_step("north", step + 1)
        if skipped_rounds(jobs[0]):
            break
    federation.succeed()
    rounds = [skipped_rounds(job) for job in jobs]
    assert len(rounds[0]) == 1
    assert rounds[0] == rounds[1] == rounds[2]
    federation.assert_same_weights(*PARTIES)
    for job in jobs:
        losses = {e.event.step: e.event.loss for e in job.events("step")}
        assert losses[12] > 0
        assert losses[int(rounds[0][0])] is None


PRIVATE = ("federated.privacy.clip=1", "federated.privacy.noise=4")


def accounts_of(job):
    return [recorded.event for recorded in job.events("privacy")]


@pytest.mark.further
@pytest.mark.timeout(240)
def test_a_party_whose_epsilon_is_used_up_ends_and_the_others_go_on(federation):
    federation.join("north", *PRIVATE)
    federation.join("south")
    federation.join("west", *PRIVATE, "federated.privacy.max_epsilon=1.5")
    west = federation.parties["west"]
    assert west.end() == 21, west.describe()
    assert re.search(r"epsilon .*'west' .*used", west.printed)
    assert "max_epsilon=1.5" in west.printed
    assert not (federation.folder / "west").exists()
    assert [event.step for event in accounts_of(west)] == [1, 2]

    federation.succeed("north", "south")
    federation.assert_same_weights("north", "south")
    north = federation.parties["north"]
    assert [event.passes for event in accounts_of(north)] == [1, 2, 3, 4, 5, 6]
    last = accounts_of(north)[-1]
    assert f"epsilon {last.epsilon:.4g} at " in north.printed
    shown = json.loads(edl("status", str(north.job_dir), "-o", "json"))
    assert shown["privacy"]["epsilon"] == pytest.approx(last.epsilon)
    assert accounts_of(federation.parties["south"]) == []


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_private_party_that_is_killed_goes_on_with_its_account(federation):
    slow = federation.folder / "hurry"
    settings = [f"params.slow_until={slow}", "params.slower_after=400", "federated.rounds=60"]
    settings += PRIVATE
    federation.join_all(*settings)
    west = federation.parties["west"]
    west.wait_for(lambda _: len(accounts_of(west)) >= 2, "the second round")
    west.process.send_signal(signal.SIGKILL)
    west.process.wait()
    before = accounts_of(west)[-1].passes
    for size in (2, 3):
        if size == 3:
            again = federation.join("west", *settings, "resume=auto")
        wait_until(
            lambda size=size: len(federation.members()[-1]) == size,
            f"a ring of {size}",
            describe=federation.coordinator.describe,
        )
    again.wait_for(lambda _: accounts_of(again), "a round")
    slow.touch()
    federation.succeed()
    federation.assert_same_weights(*PARTIES)
    assert accounts_of(again)[0].passes > before


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_private_party_alone_learns_digits(start, tmp_path):
    digits = load_digits()
    pixels = (digits.data / 16).astype(np.float32)
    for name, rows in {"train": slice(0, 1437), "test": slice(1437, None)}.items():
        with Writer(tmp_path / f"{name}.recordio", codec=Codec.NONE) as writer:
            for x, y in zip(pixels[rows], digits.target[rows], strict=True):
                writer.write(example(x=x, y=[int(y)]))
    job = start(
        "train",
        "model_def=digits",
        f"data={tmp_path}/train.recordio",
        f"validation_data={tmp_path}/test.recordio",
        "train.batch_size=256",
        "federated=private",
    ).succeed()
    accuracies = [e.event.metrics["accuracy"] for e in job.events("evaluation")]
    # The noise is another one each time: 16 runs gave 0.820 with a standard deviation of 0.014, of
    # which this is five below.
    assert max(accuracies[-3:]) > 0.75, accuracies
    assert accounts_of(job)[-1].epsilon == pytest.approx(4.98, abs=0.01)
