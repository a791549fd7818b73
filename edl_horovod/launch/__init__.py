"""Start a job's coordinator and workers, and wait for the result."""

from edl_horovod.launch.job import JobResult, run

__all__ = ["JobResult", "run"]
