"""A real coordinator over real loopback TCP, and small workers without TensorFlow or Horovod."""

import asyncio
import contextlib
import itertools
import json
from types import SimpleNamespace

import pytest

from edl_horovod.config.schema import (
    DataConfig,
    ElasticConfig,
    FederatedConfig,
    LaunchConfig,
    TrainConfig,
)
from edl_horovod.coordinator import wire
from edl_horovod.coordinator.server import Coordinator
from edl_horovod.coordinator.settings import CoordinatorSettings, Timings
from edl_horovod.coordinator.wire import Channel, greeting, new_nonce
from edl_horovod.errors import NotEnoughWorkers
from edl_horovod.job import events, hosts
from edl_horovod.job.directory import JobDir
from edl_horovod.job.state import summarize
from tests.waiting import hold, until

SECRET = b"the job's secret"
LIMIT_SECONDS = 8.0
NUMBERS = itertools.count(77)
RING = {"generation": 3, "step": 7, "rendezvous_address": "10.0.0.1", "rendezvous_port": 4000}
RING |= {"rendezvous_token": "token"}
"""What the places of a ring have in common."""
QUICK = {
    "sign_of_life_seconds": 0.15,
    "return_seconds": 0.05,
    "hosts_poll_seconds": 0.01,
    "goodbye_seconds": 0.5,
    "held_back_seconds": 0.05,
    "leaver_seconds": 0.5,
}


async def ask(port, head, body=b"", context=None):
    """Send a rendezvous one request; the status of the answer, 0 for none, and its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    with contextlib.closing(writer):  # Also where a test ends before the answer.
        writer.write(head.encode() + body)
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, content


async def exchange(port, path, body, context=None):
    """Post what a member has for the others; the answer."""
    head = f"POST /{path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return await ask(port, head, body, context)


class FakeWorker:
    """A worker that does at once what it is told, except for what a test takes over."""

    def __init__(self, port, slot=0, host="localhost", *, secret=SECRET, party="", tls=None):
        self.pid = next(NUMBERS)
        self.name = f"{host}:{slot}:1:{self.pid}"
        self.heard = []
        self.place = None
        self.generation = 0
        self.step = -1
        """Steps of the job that it has, as it tells them; 0 once it was in a ring."""
        self.is_ready = True
        self.has_state = True
        """Whether it has the state of a ring that it has formed."""
        self.task = None
        self._writer = None
        self.report = {"doing": "unwatched", "phase": "", "seconds": 0.0}
        """What its answers to pings say that it does."""
        self.num_pings = 0
        self.ignores = set()
        """Kinds of messages that it does not obey."""
        self.said = b""
        """All that went over its last connection."""
        self.port, self._slot, self._host, self._secret = port, slot, host, secret
        self._party, self._tls = party, tls

    async def connect(self, **fields):
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._tls)
        nonce = new_nonce()
        server_nonce = (await reader.readline()).decode().split()[1]
        nonces = {"server_nonce": server_nonce, "client_nonce": nonce}
        self._channel = Channel(self._secret, **nonces, is_server=False)
        self.said = greeting(nonce, self._party)
        self._writer.write(self.said)
        hello = {"worker": self.name, "host": self._host, "slot": self._slot, "pid": self.pid}
        hello |= {"generation": self.generation, "is_ready": self.is_ready, "step": self.step}
        hello |= {"formed": 0, "is_leaving": False, "has_state": self.has_state}
        self.send("hello", **{**hello, **fields})
        self.task = asyncio.create_task(self._listen(reader, self._writer, self._channel))
        return self

    def send(self, kind, **fields):
        line = self._channel.seal({"kind": kind, **fields})
        self.said += line
        self._writer.write(line)

    def send_raw(self, data):
        self._writer.write(data)

    def hang_up(self):
        if self._writer is not None:
            wire.abort(self._writer)

    @property
    def is_connected(self):
        return self.task is not None and not self.task.done()

    def kinds(self):
        return [message["kind"] for message in self.heard]

    def ready(self):
        self.is_ready = True
        self.send("ready", generation=self.generation, step=self.step, reason="")

    def pong(self):
        self.send("pong", **{"generation": self.generation, **self.report})

    def formed(self):
        if self.has_state:
            self.step = max(self.step, 0)
        self.send("formed", generation=self.generation, has_state=self.has_state)

    async def _listen(self, reader, writer, channel):
        # Closed also where the test ends before this connection, which a later one has replaced.
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while line := await reader.readline():
                message = channel.open(line)
                kind = message["kind"]
                if kind == "ping":
                    self.num_pings += 1
                else:
                    self.heard.append(message)
                if kind not in self.ignores:
                    self._obey(kind, message)

    def _obey(self, kind, message):
        if kind == "ping":
            self.pong()
        elif kind == "assign":
            self.place, self.generation, self.is_ready = message, message["generation"], False
            if "form" not in self.ignores:
                self.formed()
        elif kind == "change" and not self.is_ready:
            self.ready()
        elif kind in ("stop", "end"):
            self._writer.close()


class Job:
    """A coordinator in this process, with the directory of its job."""

    def __init__(
        self,
        job_dir,
        *,
        wanted=None,
        timings=None,
        num_start=1,
        parties=(),
        tls=None,
        **elastic,
    ):
        self.dir = job_dir
        defaults = {"max_np": 8, "wait_seconds": 5.0, "forming_seconds": 3.0}
        self.settings = CoordinatorSettings(
            job_dir=JobDir(job_dir),
            port=0,
            address="127.0.0.1",
            secret=SECRET,
            tls=tls,
            timings=Timings(**{**QUICK, **(timings or {})}),
            config=SimpleNamespace(
                task="federate" if parties else "train",
                federated=FederatedConfig(parties=list(parties)),
                launch=LaunchConfig(np=num_start),
                elastic=ElasticConfig(**{**defaults, **elastic}),
                train=TrainConfig(batch_size=8),
                data_plan=DataConfig(lanes=8),
            ),
        )
        self.hosts(**(wanted or {"localhost": 4}))
        self.file = self.dir / "coordinator.json"
        self.workers = []

    def hosts(self, **wanted):
        hosts.write(self.dir / "hosts", wanted)

    async def __aenter__(self):
        await self.start()

    async def __aexit__(self, *_):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, NotEnoughWorkers):
            await self.task
        for worker in self.workers:
            worker.hang_up()
        self.log.close()

    async def start(self):
        self.log = events.EventLog(self.dir / "events.jsonl", "coordinator")
        self.coordinator = Coordinator(self.settings, self.log)
        before = self.file.stat().st_mtime_ns if self.file.exists() else None
        self.task = asyncio.create_task(self.coordinator.run())
        # It is written once the port is open.
        await until(lambda: self.file.exists() and self.file.stat().st_mtime_ns != before)
        self.port = self.saved()["port"]

    async def crash(self):
        """End it as kill -9 would: nobody is told anything but by the closed connections."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        for worker in self.workers:
            worker.hang_up()
        await until(lambda: not any(w.is_connected for w in self.workers))

    async def restart(self):
        await self.crash()
        await self.start()

    until = staticmethod(until)
    hold = staticmethod(hold)

    async def read_hosts(self, **wanted):
        """Change the hosts, and let the coordinator, on the same event loop, read them."""
        self.hosts(**wanted)
        await hold(lambda: True, 3 * self.settings.timings.hosts_poll_seconds)

    def fake(self, slot=0, host="localhost", *, ignores=(), **settings):
        """A worker that has not called yet."""
        self.workers.append(FakeWorker(self.port, slot, host, **settings))
        self.workers[-1].ignores |= set(ignores)
        return self.workers[-1]

    async def worker(self, slot=0, host="localhost", *, ignores=(), **fields):
        """A worker that has called; the fields go into its greeting."""
        return await self.fake(slot, host, ignores=ignores).connect(**fields)

    async def _workers_at(self, places, ignores=()):
        """Workers for all of whom the first ring waits."""
        self.settings.config.launch = LaunchConfig(np=len(places))
        at = [(0, place) if isinstance(place, str) else (place,) for place in places]
        return [await self.worker(*place, ignores=ignores) for place in at]

    async def ring_of(self, *places):
        """Workers in a formed ring, one of each place: a slot of this host, or another host."""
        workers = await self._workers_at(places)
        await self.ring(*workers)
        return workers

    async def forming_ring_of(self, *places):
        """Workers with places in a ring, none of which forms it unless the test says so."""
        workers = await self._workers_at(places, ignores=["form"])
        await self.until(lambda: all(worker.place for worker in workers))
        for worker in workers:
            worker.ignores.clear()
        return workers

    def saved(self):
        return json.loads(self.file.read_text())

    def events(self, kind):
        recorded = events.read(self.dir / "events.jsonl")
        return [event for _, _, event in recorded if event.kind == kind]

    def worker_states(self, state):
        return [event for event in self.events("worker") if event.state == state]

    def state(self):
        return summarize(events.read(self.dir / "events.jsonl"))

    def generations(self):
        return [(e.size, e.is_formed) for e in self.events("generation")]

    async def ring(self, *workers, least_generation=1):
        """Wait until exactly these workers are a formed ring, in the order of their ranks."""

        def is_formed():
            places = [w.place for w in workers]
            return (
                all(places)
                and [p["rank"] for p in places] == list(range(len(workers)))
                and len({p["generation"] for p in places}) == 1
                and all(p["size"] == len(workers) for p in places)
                and not any(w.is_ready for w in workers)
                and places[0]["generation"] >= least_generation
                and (last := self.events("generation"))
                and (last[-1].generation, last[-1].is_formed) == (places[0]["generation"], True)
            )

        await until(is_formed)

    async def end(self):
        """The result, when it comes."""
        async with asyncio.timeout(LIMIT_SECONDS):
            return await self.task


def pytest_configure(config):
    config.addinivalue_line("markers", "job(**settings): the settings of the test's job")


@pytest.fixture
def job(tmp_path, request):
    """A job, which is started with the test; the nearest marks `job` have its settings."""
    settings = {}
    for mark in request.node.iter_markers("job"):
        settings = mark.kwargs | settings
    return Job(tmp_path, **settings)
