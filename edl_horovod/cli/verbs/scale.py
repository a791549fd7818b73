"""`edl scale`: change how many ranks a running job may have."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.in_cluster import add_cluster_flags, is_job_dir, jobs_of
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import JobDir

__all__ = ["run", "set_slots", "slots_of"]

_THIS_MACHINE = "localhost"


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `scale`.
        summary: One line about it.
        argv: What follows it.
    """
    usage = "[--dry-run] [-n NAMESPACE] [--context CONTEXT] [--debug] JOB --np N"
    parser = VerbParser(verb, summary=summary, usage=usage)
    parser.add_job()
    parser.add_argument("--np", metavar="N", type=int, required=True, help="ranks")
    parser.add_argument("--dry-run", action="store_true", help="print the change, and stop")
    add_cluster_flags(parser)
    flags = parser.parse_all(argv)
    note = " (dry run)" if flags.dry_run else ""
    if is_job_dir(flags.job):
        old = set_slots(JobDir(Path(flags.job)), flags.np, is_dry_run=flags.dry_run)
        print(f"{_THIS_MACHINE}: {old} -> {flags.np} slots{note}")
    else:
        with jobs_of(flags) as jobs:
            old = jobs.scale(flags.job, flags.np, is_dry_run=flags.dry_run)
        print(f"job {flags.job}: {old} -> {flags.np} ranks{note}")
    return 0


def slots_of(job_dir: JobDir) -> int:
    """How many slots a job has on this machine."""
    from edl_horovod.job import hosts

    return hosts.read(job_dir.hosts).get(_THIS_MACHINE, 0)


def set_slots(job_dir: JobDir, slots: int, *, is_dry_run: bool = False) -> int:
    """Change how many slots a running job has on this machine.

    Args:
        job_dir: The job's directory.
        slots: The new number.
        is_dry_run: Only check whether it may be.

    Returns:
        The old number.

    Raises:
        ConfigError: The job does not run, or the ring may not have that size.
    """
    from edl_horovod.job import hosts

    config = job_dir.read_config()
    if not job_dir.is_running():
        raise ConfigError(
            f"The job is not running, so it cannot be scaled. Received: {str(job_dir)!r}. "
            f"See edl status {job_dir}; the ranks of a new job are launch.np=... ."
        )
    before = hosts.read(job_dir.hosts)
    after = {**before, _THIS_MACHINE: slots}
    _check_size(config, after)
    if not is_dry_run:
        hosts.write(job_dir.hosts, after)
    return before.get(_THIS_MACHINE, 0)


def _check_size(config: JobConfig, hosts: Mapping[str, int]) -> None:
    from edl_horovod.coordinator.ring_size import check_change

    slots = hosts[_THIS_MACHINE]
    if config.launch.kind != "local":
        raise ConfigError(
            f"A static ring cannot change. Received: launch.kind={config.launch.kind}. "
            "Start the job with launch=local to scale it."
        )
    elsewhere = sum(hosts.values()) - slots
    received = f"{slots} on this machine, {elsewhere} on other hosts"
    check_change(config, -1 if slots < 0 else sum(hosts.values()), received=received)
