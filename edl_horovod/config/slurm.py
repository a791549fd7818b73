"""The settings of a job under Slurm: its allocation, and how the job leaves it."""

from dataclasses import dataclass, field

from edl_horovod.config.checks import check, check_least


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """The allocation of a job, and how the job leaves it (launch=slurm)."""

    slots_per_node: int = 1
    """Ranks on one node; launch.np must be a multiple of it."""
    min_nodes: int = 0
    """Fewest nodes that the job starts with, where not all are free; 0 waits for all of them."""
    cpus_per_rank: int = 1
    """CPUs of one rank."""
    gpus_per_rank: int = 0
    """GPUs of one rank."""
    memory: str = ""
    """Memory of a node, for all its ranks together, as Slurm writes it: `16G`; empty takes the
    default of the partition."""
    time: str = ""
    """Time limit as Slurm writes it: `90` minutes, `12:00:00`, `2-0`; empty takes the default of
    the partition."""
    partition: str = ""
    """Partition of the job; empty takes Slurm's default."""
    account: str = ""
    """Account that the job is charged to; empty takes the user's default."""
    qos: str = ""
    """Quality of service; empty takes the default."""
    options: list[str] = field(default_factory=list)
    """More options of sbatch: `["--constraint=a100"]`."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell that run on the first node before the job: `["module load cuda"]`."""
    interface: str = ""
    """Network interface of the nodes that the ring uses; empty takes the addresses that the nodes'
    names have."""
    leave_seconds: int = 120
    """Seconds before the time limit at which the job saves a checkpoint and leaves."""
    requeue: bool = True
    """Whether a job that left before its time limit is queued again, and Slurm queues it again
    after its first node failed or it was preempted."""

    def __post_init__(self) -> None:
        check_least("slurm", self, slots_per_node=1, min_nodes=0, cpus_per_rank=1)
        check_least("slurm", self, gpus_per_rank=0, leave_seconds=1)
        for name in ("memory", "time", "partition", "account", "qos", "interface"):
            value = getattr(self, name)
            is_word = value.isprintable() and " " not in value
            check(is_word, f"slurm.{name}", value, "must be one word")
        for option in self.options:
            is_option = isinstance(option, str) and option.startswith("--") and option.isprintable()
            check(is_option, "slurm.options", option, "must be a list of options, as --exclusive")
        for line in self.setup:
            is_line = isinstance(line, str) and line.isprintable()
            check(is_line, "slurm.setup", line, "must be a list of lines of shell")

    @property
    def gpu_request(self) -> str:
        """The setting that asks for GPUs; empty where it asks for none."""
        return f"slurm.gpus_per_rank={self.gpus_per_rank}" if self.gpus_per_rank else ""
