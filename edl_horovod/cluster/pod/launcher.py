"""The launcher pod's main process: `python -m edl_horovod.cluster.pod.launcher --config FILE`.

It runs host discovery and the coordinator, or horovodrun or mpirun in its place, and ends with the
job's exit code. Started again, in the same pod or in another, it takes over the job that it finds.
"""

import argparse
import logging
import math
import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from edl_horovod.cluster import pods
from edl_horovod.cluster.pod.environment import require_variables
from edl_horovod.cluster.pod_log import PodLog
from edl_horovod.cluster.styles import style_of
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import check_start, largest_ring
from edl_horovod.errors import NotEnoughWorkers
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import with_checkpoint_lanes
from edl_horovod.supervisor.plan import STATIC_RING, Command, LaunchPlan, mpirun
from edl_horovod.supervisor.programs import run_program
from edl_horovod.supervisor.run import run_plan

# Run as a program, the module is called __main__.
log = logging.getLogger("edl_horovod.cluster.pod.launcher")

HOSTFILE = "/etc/mpi/hostfile"
"""Where mpi-operator mounts the hosts of mpirun."""
KEEPALIVE = {"time": "2", "intvl": "1", "probes": "3"}
"""Keepalive of mpirun's connections: a host that vanished is noticed after 5 s, not 8 minutes."""
SSH_KEY = f"{pods.SSH_KEYS}/id_rsa"
COOLDOWN_SECONDS = ("5", "600")
"""Range of the time for which horovodrun excludes a failed host: at first 10 to 15 s, then doubled
each time."""
SAY_SECONDS = 10.0
GRACE_SHARE = 0.9
"""Share of the pod's grace period in which the workers may save a checkpoint."""
NEEDED = {
    "elastic": ("EDL_POD_IP", "EDL_NAMESPACE", "EDL_JOB", "EDL_SECRET_FILE"),
    "horovodrun": ("EDL_NAMESPACE", "EDL_JOB"),
    "mpirun": (),
}
"""Variables that a launcher pod must have, by the job's style."""
SCRIPT = Path(__file__).with_name("host-discovery.sh")


def main() -> int:
    """Run the job to its end; returns the process' exit code."""
    return run_program(__doc__, _launch, source="launcher")


def _launch(config: JobConfig, args: argparse.Namespace) -> None:
    if style_of(config).is_static:
        patience = config.elastic.wait_seconds
        wait_for_workers(Path(HOSTFILE), port=pods.SSH_PORT, seconds=patience)
    require_variables(os.environ, NEEDED[config.kubernetes.style])
    plan = plan_in_pod(config, args.config, os.environ)
    log.info("the job is done: %s", run_plan(plan, on_events=PodLog(sys.stdout)))


def wait_for_workers(hostfile: Path, *, port: int, seconds: float) -> None:
    """Wait for the `sshd` of each worker pod, because mpirun connects only once.

    mpi-operator holds no launcher back: its `launcherCreationPolicy: WaitForWorkersReady` counts
    the workers of a job that is created suspended, finds that all of none are ready, and never
    counts again.

    Raises:
        NotEnoughWorkers: One could not be reached in that time.
    """
    hosts = [line.split()[0] for line in hostfile.read_text().splitlines() if line.strip()]
    deadline, said_at = time.monotonic() + seconds, -math.inf
    # Check all of them each time: one that answered earlier may be gone when the last one answers.
    while missing := [f"{host} ({why})" for host in hosts if (why := _why_not(host, port))]:
        now = time.monotonic()
        if now > deadline:
            raise NotEnoughWorkers(
                "mpirun needs all worker pods of the job.",
                received=f"no sshd for elastic.wait_seconds={seconds:g} at {', '.join(missing)}",
                hint="`edl status` says what the pods wait for.",
            )
        if now - said_at >= SAY_SECONDS:
            num_ready, named, said_at = len(hosts) - len(missing), ", ".join(missing), now
            text = "%d of %d worker pods are ready; waiting %.0f s more for %s"
            log.info(text, num_ready, len(hosts), deadline - now, named)
        time.sleep(1.0)


def _why_not(host: str, port: int) -> str:
    """The system's error of connecting to a port; empty if it answers."""
    try:
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError as error:  # Also an unknown name: DNS has it only once the pod has an address.
        return error.strerror or str(error)
    return ""


def plan_in_pod(config: JobConfig, config_file: Path, variables: Mapping[str, str]) -> LaunchPlan:
    """Plan what the launcher pod starts; its environment has `NEEDED` of the job's style.

    Raises:
        ConfigError: The checkpoint that the job goes on from has fewer lanes than it has ranks.
    """
    # Not checked by the submitter, who cannot see the job's directory.
    config = with_checkpoint_lanes(config)
    check_start(config)
    job_dir = JobDir.of(config)
    style = style_of(config)
    if not style.has_coordinator:
        return LaunchPlan(
            config=config,
            job_dir=job_dir,
            hosts={},
            ring=(_mpirun if style.is_static else _horovodrun)(config, config_file),
            discovery=None if style.is_static else _discovery(config, variables),
            # mpi-operator makes one for each MPIJob, so the job's next launcher has it too.
            secret_file=Path(SSH_KEY),
        )
    coordinator = {
        "--job-dir": job_dir,
        "--address": variables["EDL_POD_IP"],
        "--port": pods.COORDINATOR_PORT,
        "--secret-file": variables["EDL_SECRET_FILE"],
    }
    return LaunchPlan(
        config=config,
        job_dir=job_dir,
        hosts={},
        coordinator=Command(argv=_program("coordinator", coordinator)),
        discovery=_discovery(config, variables),
        grace_seconds=GRACE_SHARE * config.kubernetes.grace_seconds,
        secret_file=Path(variables["EDL_SECRET_FILE"]),
    )


def _program(module: str, flags: Mapping[str, object]) -> tuple[str, ...]:
    """The command that runs a module of this package."""
    return (sys.executable, "-m", f"edl_horovod.{module}", *_words(flags))


def _words(flags: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(word) for flag in flags.items() for word in flag)


def _discovery(config: JobConfig, variables: Mapping[str, str]) -> Command:
    job_dir = JobDir.of(config)
    flags = {
        "--namespace": variables["EDL_NAMESPACE"],
        "--job": variables["EDL_JOB"],
        "--slots": config.kubernetes.slots_per_worker,
        "--names": style_of(config).host_names,
        "--output": job_dir.hosts,
        "--events": job_dir.events,
    }
    return Command(argv=(*_program("cluster.pod.discovery", flags), "--replace-failed"))


def _horovodrun(config: JobConfig, config_file: Path) -> Command:
    """The command of Horovod's own elastic driver; the ranks inherit its environment."""
    # The driver may let a host that failed come back after a cooldown. If that ends while it waits
    # for `min_np` hosts, it gives the host a rank but starts no process. It never waits with
    # min_np=1: a survivor is enough.
    may_come_back = config.elastic.min_np == 1
    flags = {
        "-np": config.launch.np,
        "--min-np": config.elastic.min_np,
        "--max-np": largest_ring(config),
        "--elastic-timeout": round(config.elastic.wait_seconds),
        "--network-interfaces": config.kubernetes.interface,
        "--host-discovery-script": f"{SCRIPT} {shlex.quote(str(JobDir.of(config).hosts))}",
    }
    cooldown = ("--blacklist-cooldown-range", *COOLDOWN_SECONDS) if may_come_back else ()
    argv = ("horovodrun", *_words(flags), *cooldown, *_program("worker", {"--config": config_file}))
    return Command(argv=argv, environment=pods.threads_of(config))


def _mpirun(config: JobConfig, config_file: Path) -> Command:
    """The command of one static ring over the pods that mpi-operator lists."""
    variables = pods.threads_of(config)
    # An sshd does not pass its pod's variables on to the commands that it starts.
    names = [*variables, *STATIC_RING, *config.kubernetes.env]
    flags = ["--hostfile", HOSTFILE, "--bind-to", "none"]
    for name, value in KEEPALIVE.items():
        flags += ["--prtemca", f"oob_tcp_keepalive_{name}", value]
    for name in names:
        flags += ["-x", name]
    worker, num_ranks = _program("worker", {"--config": config_file}), config.launch.np
    return mpirun(worker, num_ranks=num_ranks, variables=variables, flags=tuple(flags))


if __name__ == "__main__":
    sys.exit(main())
