"""Joins, planned removals, kills and hangs: in a job of ours, and in those of the peers.

Each side has a rank that stays, the survivor, and another one that comes and goes.
"""

import os
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import stamps
from benchmarks.ours.job import elastic_config
from benchmarks.report import Line
from benchmarks.run import (
    OURS,
    PLAIN,
    START_SECONDS,
    TORCH,
    TORCHFT,
    Run,
    python_command,
    side_command,
    wait_for,
    wait_for_end,
)
from benchmarks.side import Work
from benchmarks.stamps import Stamp
from edl_horovod.config import resolved
from edl_horovod.config.schema import ElasticConfig
from edl_horovod.files.whole_file import write_text
from edl_horovod.job import hosts
from edl_horovod.job.events import Recorded, follow, read
from edl_horovod.job.warm_workers import socket_folder
from edl_horovod.supervisor.plan import LOCAL_HOST, locate
from edl_horovod.supervisor.processes import Child

JOIN = "a worker joins: survivor's stall"
KILL = "kill -9 of a worker: survivor's stall"
LEAVE = "planned removal: survivor's stall"
HANG = "a worker hangs (SIGSTOP): survivor's stall"
REDONE = "completed steps redone after a kill"
LOST = "completed steps lost or redone, all events"
HANG_SECONDS = 10.0
"""After which the sides with PyTorch give up a member that hangs in training."""
GIVING_UP_SECONDS = 120.0
"""Longest wait for the ring after a hang."""
SURVIVOR, OTHER = 0, 1
"""Slots of our jobs."""
LOCALHOST = "localhost"
STAYS, COMES = "stays0", "comes"
"""Names of agents and replicas; a replica's ends with the number of its share of the data."""
NO_TORCH = "no torch: make torch-peer"
# With the shared store of torch 2.13, an agent that is rank 0 again does not publish its address
# again; the newcomer waits for it for 60 s, and then both agents end.
TORCHRUN_VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
TORCHRUN_CONF = "last_call_timeout=1,close_timeout=5,join_timeout=60"
TORCHFT_VARIABLES = {"GLOO_SOCKET_IFNAME": "lo"}
TORCHFT_JOIN_MILLISECONDS = 1000
"""How long a quorum waits for a replica that is there and has not asked; its default is 60 s."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the jobs train, and what happens to them."""

    work: Work
    spec: str = "cnn.CnnSpec"
    framework: str = "keras"
    num_events: int
    """The number of events of each kind."""
    settle_seconds: float
    """How long rings train undisturbed between two events."""


def keras_setup(run: Run) -> Setup:
    """The setup of the page of elasticity."""
    work = Work(data=run.data("numbers", num_records=64 * 128))
    return Setup(work=work, num_events=run.amount(5, 1), settle_seconds=run.amount(1.2, 1.0))


def torch_setup(run: Run, num_events: int) -> Setup:
    """The same of the model in PyTorch, on arrays."""
    return Setup(
        work=Work(data=run.data("arrays", num_records=64 * 128, shape=(1, 28, 28))),
        spec="torch_specs.CnnSpec",
        framework="torch",
        num_events=num_events,
        settle_seconds=run.amount(1.2, 1.0),
    )


class DrivenJob:
    """A running job."""

    def __init__(self, job_dir: Path, child: Child) -> None:
        """Follow the events of a job whose launcher was started."""
        self.child = child
        self.folder = job_dir / "stamps"
        self.job_dir = job_dir
        self._new_events = follow(job_dir / "events.jsonl")
        self._events: list[Recorded] = []

    def events(self, kind: str) -> list[Any]:
        """All events of a kind until now."""
        self._events += next(self._new_events)
        return [recorded.event for recorded in self._events if recorded.event.kind == kind]

    def want(self, slots: int) -> None:
        """Change what host discovery sees."""
        hosts.write(self.job_dir / "hosts", {LOCAL_HOST: slots})

    def rings(self, *, after: int = 0) -> list[Any]:
        """The rings that were formed after a generation."""
        events = self.events("generation")
        return [event for event in events if event.is_formed and event.generation > after]

    def generation(self) -> int:
        """The last one."""
        return max((event.generation for event in self.events("generation")), default=0)

    def members(self) -> list[int]:
        """Slots of the ring now."""
        return [int(label.rpartition(":")[2]) for label in self.rings()[-1].members]

    def num_warm(self) -> int:
        """How often a worker has become warm."""
        return sum(event.state == "warm" for event in self.events("worker"))

    def wait_for_ring(self, size: int, *, after: int = 0) -> None:
        """Wait until a ring of that size was formed, newer than a generation."""
        self.wait_for(
            lambda: any(ring.size == size for ring in self.rings(after=after)),
            f"a ring of {size} after generation {after}",
        )

    def wait_for(
        self, is_there: Callable[[], bool], description: str, seconds: float = START_SECONDS
    ) -> None:
        """Wait until a condition holds."""
        wait_for(lambda: is_there() or None, description, self.child, seconds=seconds)

    def pid(self, slot: int) -> int:
        """The process that has a slot now."""
        name, changes = f"{LOCAL_HOST}:{slot}", reversed(self.events("worker"))
        return next(e.pid for e in changes if (e.worker, e.state) == (name, "started"))

    def send(self, slot: int, number: signal.Signals) -> None:
        """Send a worker a signal."""
        os.kill(self.pid(slot), number)

    def order(self, slot: int, number: signal.Signals, delay: float) -> None:
        """Have the next process of a slot do this to itself in its next forming."""
        (self.folder / f"order.{slot}").write_text(f"{int(number)} {delay}")

    def obeyed(self, slot: int) -> float | None:
        """When a worker began to obey; None if it has not. Forgets it."""
        path = self.folder / f"obeyed.{slot}"
        if not path.exists() or not path.read_text().endswith("\n"):
            return None
        at = float(path.read_text().split()[0])
        path.unlink()
        return at

    def stamps(self, slot: int) -> list[Stamp]:
        """The steps of the process that has a slot now."""
        return stamps.read(self.folder / f"{slot}.{self.pid(slot)}")

    def all_stamps(self) -> list[Stamp]:
        """The steps of all processes that ever were."""
        return stamps_of(self.folder, "[0-9]*")


@contextmanager
def driven_job(
    run: Run,
    setup: Setup,
    name: str,
    *,
    slots: int,
    max_steps: int = 0,
    device_seconds: float = 0.0,
    ledger: bool = False,
    **elastic: Any,
) -> Iterator[DrivenJob]:
    """Start a job, which ends with the block, with so many slots.

    With a device a step of a rank alone waits so long. Settings of rings are the defaults, but that
    a slot that fails again starts again at once.
    """
    place, model = run.place(name), {"spec": setup.spec, "framework": setup.framework}
    job = {"np": slots, "max_steps": max_steps, "device_seconds": device_seconds, "ledger": ledger}
    argv = side_command(place, "ours.job.drive", setup.work, elastic=elastic, **job, **model)
    with run.process(place, argv) as child:
        yield DrivenJob(place / "job", child)


class Survivor:
    """The rank that stays: how long it stands still at each event, less a median step."""

    def __init__(
        self,
        side: str,
        steps: Callable[[], list[Stamp]],
        setup: Setup,
        *,
        before: float = 1.0,
        after: float = 1.0,
        changed_at: Callable[[int, float], float | None] | None = None,
    ) -> None:
        """Read its steps by a function.

        Gaps count from `before` to `after` seconds around the first step of the changed ring;
        `changed_at` says when a ring of a size trained after some time, or None.
        """
        self.stalls: dict[str, list[float]] = defaultdict(list)
        self.waits: dict[str, list[float]] = defaultdict(list)
        """From each event to the first step of the changed ring."""
        self._redone: dict[str, list[float]] = defaultdict(list)
        self._side = side
        self._steps = steps
        self._settle_seconds = setup.settle_seconds
        self._before = before
        self._after = after
        self._changed_at = changed_at or (
            lambda size, since: stamps.change_of_size(steps(), size, since)
        )

    def begin(self, child: Child) -> None:
        """Wait until it trains alone; its process must go on running."""
        self._child = child
        wait_for(lambda: len(self._steps()) > 2 or None, "the first steps", child)
        time.sleep(self._settle_seconds)

    def event(
        self,
        name: str,
        size: int,
        act: Callable[[], object] = lambda: None,
        *,
        since: float | None = None,
        seconds: float = START_SECONDS,
    ) -> float:
        """Let something happen, wait for the ring of a size to settle, and look back.

        Returns when it happened, which is now without `since`.
        """
        num_redone = stamps.num_redone(self._steps())
        since = since or time.monotonic()
        act()
        at = wait_for(
            lambda: self._changed_at(size, since), f"a ring of {size}", self._child, seconds=seconds
        )
        time.sleep(self._settle_seconds)
        steps = self._steps()
        begin, end = max(since, at - self._before), at + self._after
        self.stalls[name].append(stamps.stall(steps, begin, end))
        self.waits[name].append(at - since)
        self._redone[name].append(float(stamps.num_redone(steps) - num_redone))
        return since

    def line(self, name: str, **options: Any) -> Line:
        """The stalls at an event."""
        return Line(name, self._side, self.stalls[name], **options)

    def redone_line(self, **options: Any) -> Line:
        """The steps that were done once more after kills."""
        return Line(REDONE, self._side, self._redone[KILL], unit="n", **options)

    def lost_line(self, **options: Any) -> Line:
        """The steps that were done once more at all events."""
        num_redone = float(stamps.num_redone(self._steps()))
        return Line(LOST, self._side, (num_redone,), unit="n", **options)


@contextmanager
def _ours(run: Run, setup: Setup, slots: int, **elastic: Any) -> Iterator[tuple[Any, Survivor]]:
    """A job of ours and the rank of its first slot; the next change may come a second later."""
    with driven_job(run, setup, "events", slots=slots, **elastic) as job:
        survivor = Survivor(OURS, lambda: job.stamps(SURVIVOR), setup, before=0.5, after=0.5)
        job.wait_for_ring(slots)
        survivor.begin(job.child)
        yield job, survivor


def measure_ours(run: Run, setup: Setup) -> list[Line]:
    """Drive a job of ours through joins, kills and removals."""
    with _ours(run, setup, slots=1) as (job, survivor):
        survivor.event(JOIN, 2, lambda: job.want(2))
        for _ in range(setup.num_events):
            killed_at = survivor.event(KILL, 1, lambda: job.send(OTHER, signal.SIGKILL))
            # The slot is filled again, maybe before the ring of one has settled.
            survivor.event(JOIN, 2, since=killed_at)
            survivor.event(LEAVE, 1, lambda: job.want(1))
            survivor.event(JOIN, 2, lambda: job.want(2))
        lost = survivor.lost_line(most=0.0)
    waits = survivor.waits[JOIN]
    detail = f"first join {survivor.stalls[JOIN][0]:.3f} s; "
    detail += f"warm after {sorted(waits)[len(waits) // 2]:.1f} s (median)"
    return [
        survivor.line(JOIN, most_median=0.12, most=0.25, detail=detail),
        survivor.line(KILL, most_median=0.15, most=0.4),
        lost,
        survivor.line(LEAVE, most_median=0.07, most=0.15),
    ]


def measure_hang(run: Run, setup: Setup) -> list[Line]:
    """Stop a rank of ours in training; what it costs the other until it is ended."""
    with _ours(run, setup, slots=2, stall_seconds=HANG_SECONDS) as (job, survivor):
        survivor.event(HANG, 1, lambda: job.send(OTHER, signal.SIGSTOP))
    detail = f"elastic.stall_seconds={HANG_SECONDS:.0f}"
    return [survivor.line(HANG, detail=detail)]


def measure_horovod(run: Run, setup: Setup) -> list[Line]:
    """Let hosts come, be killed and be withdrawn under plain `horovodrun`."""
    place = run.place("horovodrun")
    folder = place / "stamps"
    argv = side_command(place, "peers.horovod.train_elastic", setup.work, elastic_horovodrun(place))
    survivor = Survivor(PLAIN, lambda: stamps_of(folder, LOCALHOST), setup, after=2.0)
    with run.process(place, argv) as child:
        survivor.begin(child)
        for host in map(another_name, range(2 * setup.num_events)):
            survivor.event(JOIN, 2, lambda host=host: want_hosts(place, host))
            if len(survivor.stalls[JOIN]) % 2:
                # Not the survivor, whose host has a name.
                survivor.event(KILL, 1, lambda: kill_last(folder, "127*"))
            else:
                survivor.event(LEAVE, 1, lambda: want_hosts(place))
    redone = survivor.redone_line(detail="a commit every 10 steps")
    lines = [survivor.line(JOIN), survivor.line(KILL), redone, survivor.line(LEAVE)]
    return lines


def kill_last(folder: Path, pattern: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the process that stamped last, of those of some names."""
    os.kill(stamps.last_pid(folder, pattern), number)


def measure_warm_horovodrun(run: Run, setup: Setup) -> list[Line]:
    """Let a host come and go under plain `horovodrun`, a warm worker waiting for it each time."""
    place = run.place("warm-horovodrun")
    job_dir = place / "job"
    job_dir.mkdir()
    config = job_dir / "config.yaml"
    elastic = ElasticConfig(max_np=2)
    resolved.dump(elastic_config(setup.work, job_dir, np=1, elastic=elastic), config)

    def wait_for_warm(least: int) -> None:
        sockets = socket_folder(config)
        wait_for(lambda: len(list(sockets.glob("*.sock"))) >= least or None, "warm workers", keeper)

    def sizes_and_seconds() -> list[tuple[int, float]]:
        log = job_dir / "events.jsonl"
        events = [recorded.event for recorded in (read(log) if log.exists() else ())]
        return [(event.new_size, event.seconds) for event in events if event.kind == "reset"]

    def reset(size: int, host: str = "") -> float:
        """Seconds of the next reset to a ring of a size."""
        num_resets = len(sizes_and_seconds())
        want_hosts(place, *filter(None, [host]))

        def seconds() -> float | None:
            resets = sizes_and_seconds()[num_resets:]
            return next((seconds for new_size, seconds in resets if new_size == size), None)

        return wait_for(seconds, f"a ring of {size}", child)

    joins = []
    keep = python_command("edl_horovod.supervisor.keep_warm", "--config", config, "--slots", 2)
    with run.process(place, keep, log="keep_warm") as keeper:
        wait_for_warm(2)
        worker = ("-m", "edl_horovod.worker.shim", "--config", str(config))
        argv = (*elastic_horovodrun(place), *worker)
        with run.process(place, argv) as child:
            wait_for(lambda: sizes_and_seconds() or None, "a ring of 1", child)
            for number in range(setup.num_events):
                wait_for_warm(1)
                joins.append(reset(2, another_name(number)))
                reset(1)
    detail = "from leaving the ring to the next one, as its rank 0 sees it"
    line = Line("warm join under plain horovodrun", OURS, joins, most_median=0.7, detail=detail)
    return [line]


def another_name(number: int) -> str:
    """A name of this machine that was not used before: Horovod bans those that failed."""
    return f"127.0.0.{'0' * number}1"


def elastic_horovodrun(place: Path, *others: str) -> tuple[str, ...]:
    """The launcher of an elastic ring on the hosts in `place/hosts`: the survivor's, and others.

    The ring has two ranks at most, or one on each of the hosts that it begins with.
    """
    discover = place / "discover.sh"
    discover.write_text(f"#!/bin/sh\ncat {place}/hosts\n")
    discover.chmod(0o755)
    want_hosts(place, *others)
    most = str(max(2, 1 + len(others)))
    ring = ("-np", "1", "--min-np", "1", "--max-np", most, "--gloo", "--network-interfaces", "lo")
    script = ("--host-discovery-script", str(discover))
    return (locate("horovodrun"), *ring, *script, sys.executable)


def want_hosts(place: Path, *others: str) -> None:
    """Change what the discovery script prints: the survivor's host, and others."""
    write_text(place / "hosts", "".join(f"{name}:1\n" for name in (LOCALHOST, *others)))


def stamps_of(folder: Path, name: str) -> list[Stamp]:
    """The steps of all processes of a name, in order of time."""
    paths = folder.glob(f"{name}.*")
    return sorted((stamp for path in paths for stamp in stamps.read(path)), key=lambda s: s.at)


def measure_torchrun(run: Run, setup: Setup) -> list[Line]:
    """Start an agent of `torchrun`; let another come, lose its worker, go, and hang."""
    if not run.torch_python.exists():
        return _not_measured(TORCH)
    folder, endpoint = run.place("torchrun") / "stamps", f"127.0.0.1:{_free_port()}"

    def changed_at(size: int, since: float) -> float | None:
        """When a new worker of the agent that stays ended its first step."""
        for steps in map(stamps.read, folder.glob(f"{STAYS}.*")):
            if len(steps) > 2 and steps[0].at > since and steps[0].size == size:
                return steps[0].at
        return None

    def agent(name: str) -> AbstractContextManager[Child]:
        place, launcher = run.place(name), _torchrun_agent(run.torch_python, endpoint)
        options = {"agent": name, "stamps": folder, "timeout": HANG_SECONDS}
        argv = side_command(place, "peers.torch.train_elastic", setup.work, launcher, **options)
        return run.process(place, argv, environment=TORCHRUN_VARIABLES)

    survivor = Survivor(
        TORCH, lambda: stamps_of(folder, STAYS), setup, before=1e9, changed_at=changed_at
    )
    with agent(STAYS) as stays:
        survivor.begin(stays)
        for number in range(setup.num_events):
            since, name = time.monotonic(), f"{COMES}{number}"
            with agent(name):
                survivor.event(JOIN, 2, since=since)
                survivor.event(KILL, 2, lambda name=name: kill_last(folder, f"{name}.*"))
                since = time.monotonic()
            survivor.event(LEAVE, 1, since=since)
        since, name = time.monotonic(), f"{COMES}-hangs"
        with agent(name):
            survivor.event("the last join", 2, since=since)
            stop = partial(kill_last, folder, f"{name}.*", signal.SIGSTOP)
            survivor.event(HANG, 2, stop, seconds=GIVING_UP_SECONDS)
    restart, saved = "all workers start again", "a checkpoint every 50 steps"
    given_up = f"collectives end after {HANG_SECONDS:.0f} s"
    return [
        survivor.line(JOIN, detail=restart),
        survivor.line(KILL, detail=f"{restart}, the killed one too"),
        survivor.redone_line(detail=saved),
        survivor.line(LEAVE, detail="SIGTERM to its agent"),
        survivor.line(HANG, detail=given_up),
    ]


def _not_measured(side: str) -> list[Line]:
    return [Line(e, side, detail=NO_TORCH) for e in (JOIN, KILL, LEAVE, HANG)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _torchrun_agent(python: Path, endpoint: str) -> tuple[str, ...]:
    """The launcher of an agent; the first one holds the rendezvous."""
    ring = ("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=benchmark")
    rendezvous = (f"--rdzv-conf={TORCHRUN_CONF}", f"--rdzv-endpoint={endpoint}")
    limits = ("--nproc-per-node=1", "--max-restarts=1000", "--monitor-interval=0.1")
    launcher = (str(python), "-m", "torch.distributed.run")
    return (*launcher, *ring, *rendezvous, *limits, "--local-addr=127.0.0.1")


@contextmanager
def lighthouse(run: Run, place: Path, *, num_replicas: int) -> Iterator[str]:
    """What makes torchft's replicas agree on who takes part; its URL."""
    address = f"127.0.0.1:{_free_port()}"
    limits = ("--min_replicas", str(num_replicas))
    limits += ("--join_timeout_ms", str(TORCHFT_JOIN_MILLISECONDS))
    program = run.torch_python.parent / "torchft_lighthouse"
    with run.process(place, (str(program), *limits, "--bind", address), log="lighthouse"):
        yield f"http://{address}"


@contextmanager
def replica(run: Run, work: Work, name: str, url: str, **arguments: Any) -> Iterator[Child]:
    """A replica of torchft; `peers.torch.replica` takes the arguments."""
    place = run.place(f"replica-{name}")
    arguments |= {"name": name, "lighthouse": url}
    launcher = (str(run.torch_python),)
    argv = side_command(place, "peers.torch.replica", work, launcher, **arguments)
    with run.process(place, argv, environment=TORCHFT_VARIABLES) as child:
        yield child


def train_replicas(
    run: Run, work: Work, num_replicas: int, seconds: float, **arguments: Any
) -> None:
    """Train with replicas of torchft and their lighthouse to the end."""
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        place = run.place("lighthouse")
        url = stack.enter_context(lighthouse(run, place, num_replicas=num_replicas))
        arguments |= {"total_steps": work.total_steps, "num_replicas": num_replicas}
        children = [
            stack.enter_context(replica(run, work, str(number), url, **arguments))
            for number in range(num_replicas)
        ]
        for child in children:
            wait_for_end(child, "peers.torch.replica", max(0.0, until - time.monotonic()))


def measure_torchft(run: Run, setup: Setup) -> list[Line]:
    """Start a replica of torchft; let others come, die, go, and hang."""
    if not run.torch_python.exists():
        return _not_measured(TORCHFT)
    place = run.place("torchft")
    folder = place / "stamps"
    survivor = Survivor(TORCHFT, lambda: stamps_of(folder, STAYS), setup)
    strikes = [(KILL, signal.SIGKILL), (LEAVE, signal.SIGTERM)] * setup.num_events
    options: dict[str, Any] = {"stamps": folder, "timeout": HANG_SECONDS, "is_pure": True}
    with (
        lighthouse(run, place, num_replicas=1) as url,
        replica(run, setup.work, STAYS, url, **options) as stays,
    ):
        survivor.begin(stays)
        for number, (event, order) in enumerate([*strikes, (HANG, signal.SIGSTOP)]):
            name, since = f"{COMES}-{number}-1", time.monotonic()
            with replica(run, setup.work, name, url, **options):
                survivor.event(JOIN, 2, since=since)
                # The newcomer may end, as it was told.
                survivor.event(event, 1, partial(kill_last, folder, f"{name}.*", order))
    given_up = f"its operations end after {HANG_SECONDS:.0f} s"
    return [
        survivor.line(JOIN),
        survivor.line(KILL),
        survivor.line(LEAVE, detail="its process ends between two steps"),
        survivor.line(HANG, detail=given_up),
        survivor.lost_line(),
    ]
