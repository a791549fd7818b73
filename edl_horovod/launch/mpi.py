"""launch=mpi: a static ring of this machine's processes, under mpirun."""

import os
from typing import ClassVar

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import check_start
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import JobDir, with_job_dir
from edl_horovod.job.earlier import with_checkpoint_lanes
from edl_horovod.launch.local import LocalTarget, threads_of, worker_of
from edl_horovod.models.framework_name import with_framework
from edl_horovod.supervisor.plan import LOCAL_HOST, LaunchPlan, locate, mpirun

__all__ = ["MpiTarget"]


class MpiTarget(LocalTarget):
    """Runs a job on this machine as launch=local does, but on a ring that cannot change."""

    is_elastic: ClassVar[bool] = False

    def plan(self, config: JobConfig) -> LaunchPlan:
        """Plan one `mpirun`; see `LaunchTarget`."""
        if config.elastic.autoscale:
            raise ConfigError(
                "elastic.autoscale is for train on an elastic ring, and that of mpirun is static.",
                received="elastic.autoscale=True, launch.kind=mpi",
            )
        config = with_framework(with_checkpoint_lanes(with_job_dir(config)))
        check_start(config)
        job_dir, num_ranks = JobDir.of(config), config.launch.np
        variables = threads_of(config)  # Environment variables that limit each rank's threads.
        if os.geteuid() == 0:  # As is usual in a container.
            # Open MPI runs as root only if both variables allow it.
            variables |= dict.fromkeys(
                ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
            )
        return LaunchPlan(
            config=config,
            job_dir=job_dir,
            hosts={LOCAL_HOST: num_ranks},
            ring=mpirun(
                worker_of(job_dir),
                num_ranks=num_ranks,
                variables=variables,
                flags=("--oversubscribe", "--bind-to", "none"),
                program=locate("mpirun"),
            ),
        )
