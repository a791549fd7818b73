"""Joins and kills under TorchElastic: two `torchrun` agents, DDP on Gloo."""

import os
import signal
import socket
import time
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.elastic import stamps
from benchmarks.elastic.ring_events import HANG
from benchmarks.elastic.settings import HANG_SECONDS, START_SECONDS, TORCH, Run
from benchmarks.elastic.stamps import Stamp
from benchmarks.elastic.table import Line
from edl_horovod.supervisor.processes import Child

__all__ = ["COMES", "MISSING", "STAYS", "measure"]

STAYS = "stays"
COMES = "comes"
MISSING = "no torch: make torch-peer"
GIVING_UP_SECONDS = 120.0
"""Longest wait for the ring after a hang."""
# With the shared store of torch 2.13, an agent that is rank 0 again does not publish its address
# again; the newcomer waits for it for 60 s, and then both agents end.
VARIABLES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
CONF = "last_call_timeout=1,close_timeout=5,join_timeout=60"


def measure(run: Run) -> list[Line]:
    """Start one agent; let the other come, lose its worker, go, and hang.

    Args:
        run: Starts the processes, and holds the arrays.

    Raises:
        SideFailed: An agent ended, or an event did not show in time.
    """
    join, kill = "a worker joins: survivor's stall", "kill -9 of a worker: survivor's stall"
    leave = "planned removal: survivor's stall"
    if not run.torch_python.exists():
        return [
            Line(event=event, side=TORCH, detail=MISSING) for event in (join, kill, leave, HANG)
        ]
    place = run.place("torchrun")
    (place / "stamps").mkdir()
    events = _Events(run, place)
    joins, kills, leaves, hangs, redone = [], [], [], [], []

    def agent(name: str) -> AbstractContextManager[Child]:
        command = _command(run, place, name)
        return run.process(place, command, name=f"log.{name}", environment=VARIABLES)

    with agent(STAYS) as stays:
        events.wait_for_ring(1, 0.0, stays)
        for number in range(run.settings.num_events):
            time.sleep(run.settings.settle_seconds)
            since = time.monotonic()
            name = f"{COMES}{number}"
            with agent(name) as comes:
                joins.append(events.stall_until(2, since, stays, comes))
                before = events.num_redone()
                since = time.monotonic()
                os.kill(events.last_pid(name), signal.SIGKILL)
                kills.append(events.stall_until(2, since, stays, comes))
                redone.append(events.num_redone() - before)
                since = time.monotonic()
            leaves.append(events.stall_until(1, since, stays))
        with agent(f"{COMES}-hangs") as comes:
            events.stall_until(2, time.monotonic(), stays, comes)
            since = time.monotonic()
            os.kill(events.last_pid(f"{COMES}-hangs"), signal.SIGSTOP)
            hangs.append(events.stall_until(2, since, stays, comes, seconds=GIVING_UP_SECONDS))
    detail = "all workers start anew, the killed one too"
    return [
        Line(event=join, side=TORCH, values=tuple(joins), detail="all workers start anew"),
        Line(event=kill, side=TORCH, values=tuple(kills), detail=detail),
        Line(
            event="completed steps redone after a kill",
            side=TORCH,
            unit="n",
            values=tuple(float(number) for number in redone),
            detail="a checkpoint every 50 steps",
        ),
        Line(event=leave, side=TORCH, values=tuple(leaves), detail="SIGTERM to its agent"),
        Line(
            event=HANG,
            side=TORCH,
            values=tuple(hangs),
            detail=f"collectives end after {HANG_SECONDS:.0f} s",
        ),
    ]


def _command(run: Run, place: Path, name: str) -> tuple[str, ...]:
    """One agent's command; the first one holds the rendezvous."""
    agent = (str(run.torch_python), "-m", "torch.distributed.run", "--nnodes=1:2")
    endpoint = f"--rdzv-endpoint=127.0.0.1:{_port(place)}"
    ring = ("--rdzv-backend=c10d", "--rdzv-id=benchmark", f"--rdzv-conf={CONF}", endpoint)
    limits = ("--nproc-per-node=1", "--max-restarts=1000", "--monitor-interval=0.1")
    where = ("--local-addr=127.0.0.1", "-m", "benchmarks.peers.torch_elastic")
    files = ("--stamps", str(place / "stamps"), "--data", str(run.data), "--agent", name)
    numbers = (f"--batch-size={run.batch_size}", f"--timeout={HANG_SECONDS}", "--model=small")
    return (*agent, *ring, *limits, *where, *files, *numbers)


def _port(place: Path) -> int:
    """A port that is free now, the same for all agents of a place."""
    path = place / "port"
    if not path.exists():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            path.write_text(str(probe.getsockname()[1]))
    return int(path.read_text())


class _Events:
    """The stamps of the agent that stays, through all its workers."""

    def __init__(self, run: Run, place: Path) -> None:
        self._run = run
        self._stamps = place / "stamps"

    def _all(self) -> list[Stamp]:
        paths = self._stamps.glob(f"{STAYS}.*")
        return sorted((s for path in paths for s in stamps.read(path)), key=lambda s: s.at)

    def num_redone(self) -> int:
        return stamps.num_redone(self._all())

    def last_pid(self, agent: str) -> int:
        """Of an agent's worker that wrote last."""
        paths = self._stamps.glob(f"{agent}.*")
        return int(max(paths, key=lambda path: path.stat().st_mtime_ns).suffix[1:])

    def wait_for_ring(
        self, size: int, since: float, *agents: Child, seconds: float = START_SECONDS
    ) -> float:
        """Wait for steps of a new worker in a ring of that size; when the first one ended."""

        def first() -> float | None:
            for path in self._stamps.glob(f"{STAYS}.*"):
                found = stamps.read(path)
                if len(found) > 2 and found[0].at > since and found[0].size == size:
                    return found[0].at
            return None

        return self._run.wait_for(first, f"a ring of {size}", *agents, seconds=seconds)

    def stall_until(
        self, size: int, since: float, *agents: Child, seconds: float = START_SECONDS
    ) -> float:
        at = self.wait_for_ring(size, since, *agents, seconds=seconds)
        time.sleep(self._run.settings.settle_seconds)
        return stamps.stall(self._all(), since, at + 1.0)
