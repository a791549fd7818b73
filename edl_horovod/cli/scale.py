"""`edl scale`: change how many ranks a running job may have on this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_horovod.cli import job_dir as job_dirs
from edl_horovod.cli.arguments import VerbParser
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError

__all__ = ["run", "set_slots", "slots_of"]

_THIS_MACHINE = "localhost"


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `scale`.
        summary: One line about it.
        argv: What follows it.
    """
    parser = VerbParser(verb, summary=summary, usage="[--dry-run] [--debug] JOB_DIR N")
    parser.add_job_dir()
    parser.add_argument("slots", metavar="N", type=int, help="ranks on this machine")
    parser.add_argument("--dry-run", action="store_true", help="print the change, and stop")
    flags = parser.parse_all(argv)
    old = set_slots(flags.job_dir, flags.slots, is_dry_run=flags.dry_run)
    print(f"{_THIS_MACHINE}: {old} -> {flags.slots} slots{' (dry run)' if flags.dry_run else ''}")
    return 0


def slots_of(job_dir: Path) -> int:
    """How many slots a job has on this machine."""
    from edl_horovod.coordinator import hosts

    return hosts.read(job_dir / "hosts").get(_THIS_MACHINE, 0)


def set_slots(job_dir: Path, slots: int, *, is_dry_run: bool = False) -> int:
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
    from edl_horovod.coordinator import hosts

    config = job_dirs.read_config(job_dir)
    if not job_dirs.is_running(job_dir):
        raise ConfigError(
            f"The job is not running, so it cannot be scaled. Received: {str(job_dir)!r}. "
            f"See edl status {job_dir}; the ranks of a new job are launch.np=... ."
        )
    before = hosts.read(job_dir / "hosts")
    after = {**before, _THIS_MACHINE: slots}
    _check_size(config, after)
    if not is_dry_run:
        hosts.write(job_dir / "hosts", after)
    return before.get(_THIS_MACHINE, 0)


def _check_size(config: JobConfig, hosts: Mapping[str, int]) -> None:
    from edl_horovod.data.plan import choose_num_lanes

    slots = hosts[_THIS_MACHINE]
    if config.launch.kind != "local":
        raise ConfigError(
            f"A static ring cannot change. Received: launch.kind={config.launch.kind}. "
            "Start the job with launch=local to scale it."
        )
    lanes = choose_num_lanes(config.train.batch_size, config.data_plan.lanes)
    most = min(config.elastic.max_np or lanes, lanes)
    if slots < 0 or not config.elastic.min_np <= sum(hosts.values()) <= most:
        elsewhere = sum(hosts.values()) - slots
        raise ConfigError(
            f"The ring must keep between elastic.min_np={config.elastic.min_np} and {most} ranks "
            f"(elastic.max_np, and never more than the {lanes} lanes). "
            f"Received: {slots} on this machine, {elsewhere} on other hosts."
        )
