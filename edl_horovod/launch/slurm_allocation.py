"""What runs inside an allocation of Slurm, in three roles.

`python -m edl_horovod.launch.slurm_allocation ROLE --config FILE`: `launcher` is the batch
script's process on the first node. It starts `nodes`, which starts a step of Slurm on each
node and takes a node out of the hosts file when Slurm has taken it back. `node` is such a step: it
keeps the workers of its node.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType

import psutil

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import check_start
from edl_horovod.coordinator import saved
from edl_horovod.errors import ClusterError, ConfigError, Interrupted
from edl_horovod.job import checkpoint_files, earlier, hosts, lifeline
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, Recorded
from edl_horovod.launch.slurm import ask_slurm
from edl_horovod.models.framework_name import with_framework
from edl_horovod.supervisor.plan import Command, LaunchPlan, thread_variables
from edl_horovod.supervisor.processes import Child, seconds_to_retry
from edl_horovod.supervisor.programs import end_requested, run_program
from edl_horovod.supervisor.run import run_plan
from edl_horovod.supervisor.slots import Slots

log = logging.getLogger("edl_horovod.launch.slurm_allocation")  # Run as a program: __main__.

POLL_SECONDS = 0.2
ASK_SECONDS = 5.0
"""Between two questions to Slurm, which nodes the job has."""
MAX_BACKOFF_SECONDS = 60.0
GRACE_SHARE = 0.9
"""Share of slurm.leave_seconds that the workers may take to save a checkpoint."""


def main() -> int:
    """Play a role to its end; returns the process' exit code."""
    return run_program(__doc__, _play, role={"choices": ("launcher", "nodes", "node")})


def _play(config: JobConfig, args: argparse.Namespace) -> int | None:
    if args.role == "launcher":
        return run_job(config)
    lifeline.end_with_parent()
    return (keep_steps if args.role == "nodes" else keep_workers)(config)


def run_job(config: JobConfig) -> int:
    """Run the job until it ends or has to leave; it is queued again where it can go on."""
    number = os.environ["SLURM_JOB_ID"]
    job_id = f"{os.environ.get('SLURM_CLUSTER_NAME', '')} {number}"
    # A job may be queued again before its launcher ran; then the directory is an earlier job's.
    if earlier.has_id(JobDir.of(config), job_id):
        config = replace(config, resume="auto")
    plan = plan_in_allocation(config, nodes_of(number), os.environ["SLURMD_NODENAME"])
    plan = replace(plan, job_id=job_id)
    received: list[int] = []
    step_before = -1 if config.resume == "never" else _newest_step(plan.job_dir)

    def leave(signal_number: int, _frame: FrameType | None) -> None:
        received.append(signal_number)
        ask_to_stop()

    def ask_to_stop(_events: Sequence[Recorded] = ()) -> None:
        # A request that comes before the job's directory is ready is repeated at its first event.
        if received and plan.job_dir.path.is_dir():
            plan.job_dir.stop_request.touch()

    signal.signal(signal.SIGUSR1, leave)
    signal.signal(signal.SIGTERM, leave)
    try:
        result = run_plan(plan, on_events=ask_to_stop)
    except Interrupted as error:
        if received[:1] == [signal.SIGUSR1] and config.slurm.requeue:
            # A job that gets no further within its time limit would be queued for ever.
            if _newest_step(plan.job_dir) > step_before:
                log.info("The time limit is near; the job is queued again.")
                ask_slurm("scontrol", "requeue", number)
                return 0
            log.error("The job saved no new checkpoint within its time limit.")
        log.error("%s", error)
        return error.exit_code
    log.info("the job is done: %s", result)
    return 0


def _newest_step(job_dir: JobDir) -> int:
    """The step of the newest checkpoint; -1 without one."""
    return max(checkpoint_files.steps_in(job_dir.checkpoints), default=-1)


def plan_in_allocation(config: JobConfig, nodes: Sequence[str], first: str) -> LaunchPlan:
    """Decide what the launcher starts.

    Args:
        config: The job.
        nodes: The nodes of the allocation.
        first: The node of the batch script.

    Raises:
        ConfigError: The settings do not fit, or the node does not have the interface.
    """
    config = with_framework(earlier.with_checkpoint_lanes(config))
    check_start(config)
    job_dir = JobDir.of(config)
    address = _address_of(config.slurm.interface) if config.slurm.interface else first
    module = (sys.executable, "-m")
    coordinator = ("edl_horovod.coordinator", "--job-dir", str(job_dir), "--address", address)
    discovery = ("edl_horovod.launch.slurm_allocation", "nodes", "--config", str(job_dir.config))
    ordered = sorted(nodes, key=lambda node: node != first)
    return LaunchPlan(
        config=config,
        job_dir=job_dir,
        hosts=dict.fromkeys(ordered, config.slurm.slots_per_node),
        coordinator=Command(argv=(*module, *coordinator)),
        discovery=Command(argv=(*module, *discovery)),
        grace_seconds=GRACE_SHARE * config.slurm.leave_seconds,
    )


@dataclass
class _Step:
    """The step of Slurm on one node."""

    child: Child | None = None
    started_at: float = 0.0
    num_ends: int = 0
    """Number of ends in a row that came soon after the start."""
    start_at: float | None = 0.0
    """When to start the next process, by `time.monotonic`; None while one runs."""


def keep_steps(config: JobConfig) -> None:
    """Keep a step on each node of the job, and the hosts file without lost nodes, until the end."""
    is_leaving = end_requested()
    job_dir, number = JobDir.of(config), os.environ["SLURM_JOB_ID"]
    steps: dict[str, _Step] = {}
    nodes = tuple(hosts.read(job_dir.hosts))
    asked_at = time.monotonic()
    try:
        while not is_leaving() and not job_dir.result.exists():
            if time.monotonic() - asked_at > ASK_SECONDS:
                nodes, asked_at = _drop_lost(job_dir, number, nodes), time.monotonic()
            for node in [node for node in steps if node not in nodes]:
                if (child := steps.pop(node).child) is not None:
                    child.close()
            if (ring := saved.load(job_dir.coordinator_state)) is not None:
                for node in nodes:
                    command = _step_command(config, node, f"{ring.address}:{ring.port}")
                    _keep(steps.setdefault(node, _Step()), node, command, job_dir)
            time.sleep(POLL_SECONDS)
    finally:
        children = [step.child for step in steps.values() if step.child is not None]
        if any(child.exit_code is None for child in children):
            with suppress(ClusterError):
                # All processes of all steps get it; srun would kill its step.
                ask_slurm("scancel", "--signal=TERM", number)
        deadline = time.monotonic() + GRACE_SHARE * config.slurm.leave_seconds
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
            child.close()


def _drop_lost(job_dir: JobDir, number: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes that the job still has; the hosts file loses the others."""
    try:
        left = nodes_of(number)
    except ClusterError as error:
        log.warning("Which nodes the job has is not known: %s", error)
        return nodes
    if lost := [node for node in nodes if node not in left]:
        log.warning("Slurm took back %s.", ", ".join(lost))
        wanted = hosts.read(job_dir.hosts)
        hosts.write(job_dir.hosts, {node: wanted[node] for node in wanted if node not in lost})
    return tuple(node for node in nodes if node in left)


def _keep(step: _Step, node: str, command: Command, job_dir: JobDir) -> None:
    """Start the step of a node, again where it has ended; longer and longer waits lie between."""
    now = time.monotonic()
    if step.start_at is not None and now >= step.start_at:
        if step.child is not None:
            step.child.close()
        try:
            step.child = Child(command, job_dir.logs / f"{node}.log")
        except OSError as error:
            step.start_at = now + seconds_to_retry(f"the step on {node}", error)
        else:
            step.started_at, step.start_at = now, None
    elif step.start_at is None and step.child is not None and step.child.exit_code is not None:
        if now - step.started_at > MAX_BACKOFF_SECONDS:
            step.num_ends = 0
        # Bounded before it is a number, because 2 to the power of 1024 is none.
        wait = min(2.0 ** min(step.num_ends, 10), MAX_BACKOFF_SECONDS)
        code = step.child.exit_code
        log.warning("the step on %s ended with %s; it is restarted in %.0f s", node, code, wait)
        step.num_ends, step.start_at = step.num_ends + 1, now + wait


def _step_command(config: JobConfig, node: str, coordinator: str) -> Command:
    job_dir, slurm = JobDir.of(config), config.slurm
    cpus = slurm.slots_per_node * slurm.cpus_per_rank
    place = (f"--nodelist={node}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}")
    srun = ("srun", "--overlap", *place)
    program = (sys.executable, "-m", "edl_horovod.launch.slurm_allocation", "node")
    variables = {
        **thread_variables(config.launch.threads_per_rank or slurm.cpus_per_rank),
        "EDL_COORDINATOR": coordinator,
        "EDL_SECRET_FILE": str(job_dir.secret),
    }
    if slurm.interface:
        variables["HOROVOD_GLOO_IFACE"] = slurm.interface
    return Command(argv=(*srun, *program, "--config", str(job_dir.config)), environment=variables)


def keep_workers(config: JobConfig) -> None:
    """Keep as many workers on this node as the hosts file wants, until the job ends."""
    is_leaving = end_requested()
    job_dir, host = JobDir.of(config), os.environ["SLURMD_NODENAME"]
    argv = (sys.executable, "-m", "edl_horovod.worker", "--config", str(job_dir.config))
    command = Command(argv=argv, environment={"EDL_HOST": host}, can_fork=True)
    hosts_file, backoff = hosts.HostsFile(job_dir.hosts), config.elastic.restart_backoff_seconds
    with EventLog(job_dir.events, host) as events:
        slots = Slots(command, None, events, backoff_seconds=backoff, host=host)

        def is_over() -> bool:
            if (wanted := hosts_file.change()) is not None:
                num_slots = min(wanted.get(host, 0), config.slurm.slots_per_node)
                slots.num_wanted = hosts.num_workers(num_slots, config.elastic.spares)
            return is_leaving() or job_dir.result.exists()

        slots.keep_until(
            is_over,
            job_events=job_dir.events,
            grace_seconds=GRACE_SHARE * config.slurm.leave_seconds,
        )


def nodes_of(number: str) -> list[str]:
    """The names of the nodes that a job has now.

    Raises:
        ClusterError: Slurm does not say.
    """
    nodes = ask_slurm("squeue", "--noheader", "--jobs", number, "--format=%N").strip()
    return ask_slurm("scontrol", "show", "hostnames", nodes).split()


def _address_of(interface: str) -> str:
    """The IPv4 address of an interface of this machine.

    Raises:
        ConfigError: It has none.
    """
    addresses_by_interface = psutil.net_if_addrs()
    for address in addresses_by_interface.get(interface, ()):
        if address.family == socket.AF_INET:
            return str(address.address)
    raise ConfigError(
        "The first node has no such interface, or the interface has no IPv4 address.",
        received={"slurm.interface": interface},
        hint=f"Interfaces of this node: {', '.join(sorted(addresses_by_interface))}.",
    )


if __name__ == "__main__":
    sys.exit(main())
