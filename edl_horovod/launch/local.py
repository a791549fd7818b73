"""Jobs of this machine's processes: launch=local, an elastic ring, and launch=mpi, a static one."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from edl_horovod.config import resolved, tasks
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.job import earlier, hosts, output_checks
from edl_horovod.job.directory import JobDir, with_job_dir
from edl_horovod.job.events import OnEvents
from edl_horovod.launch.party import plan_coordinator, refuse_party
from edl_horovod.launch.target import DryRun, LaunchTarget
from edl_horovod.models import framework_name, job_zoo
from edl_horovod.supervisor.forks import WarmServer
from edl_horovod.supervisor.plan import (
    LOCAL_HOST,
    Command,
    LaunchPlan,
    local_worker,
    locate,
    mpirun,
    threads_of,
    worker_argv,
)
from edl_horovod.supervisor.run import JobResult, run_plan

# Not imported at run time, to keep the start of a job short.
if TYPE_CHECKING:
    from edl_horovod.launch.local_jobs import LocalJobs

LOCAL_ADDRESS = "127.0.0.1"


class LocalTarget(LaunchTarget[LaunchPlan, JobResult]):
    """Runs a job on this machine, with a ring that can change while it runs."""

    def plan(self, config: JobConfig) -> LaunchPlan:
        """Plan the coordinator and the workers; see `LaunchTarget`."""
        if config.task == "federate":
            return plan_coordinator(config)
        refuse_party(config)
        config = framework_name.with_framework(earlier.with_checkpoint_lanes(with_job_dir(config)))
        tasks.check_start(config)
        job_dir = JobDir.of(config)
        coordinator = (sys.executable, "-m", "edl_horovod.coordinator", "--job-dir", str(job_dir))
        return LaunchPlan(
            config=config,
            job_dir=job_dir,
            hosts={LOCAL_HOST: config.launch.np},
            coordinator=Command(argv=(*coordinator, "--address", LOCAL_ADDRESS)),
            worker=local_worker(
                config,
                job_dir,
                {
                    "EDL_HOST": LOCAL_HOST,
                    "EDL_SECRET_FILE": str(job_dir.secret),
                    "HOROVOD_GLOO_IFACE": "lo",
                },
            ),
        )

    def describe(self, plan: LaunchPlan, *, check: DryRun = "client", whole: bool = False) -> str:
        """The settings as YAML, for programs to read, followed by the plan in comments."""
        config = plan.config
        if check == "server" or whole:
            raise ConfigError(
                "--dry-run=server and -o are for jobs that are submitted to a cluster.",
                received=f"launch.kind={config.launch.kind}",
                hint="Leave them out; --dry-run prints what would run here.",
            )
        output_checks.check_is_free(config)
        output_checks.check_paths(config)
        lines = [f"job directory: {plan.job_dir}"]
        if change := job_zoo.pending(config):
            lines.append(f"model zoo: {change}")
        if plan.coordinator is not None:
            lines.append(f"coordinator: {plan.coordinator}")
        if plan.worker is not None:
            num = hosts.num_workers(config.launch.np, config.elastic.spares)
            lines.append(f"{num} workers: {plan.worker}")
        if plan.ring is not None:
            lines.append(f"static ring: {plan.ring}")
        return resolved.to_yaml(config) + "".join(f"# {line}\n" for line in lines)

    def launch(
        self, plan: LaunchPlan, *, on_events: OnEvents | None = None, warm: WarmServer | None = None
    ) -> JobResult:
        """Run the job to its end."""
        return run_plan(plan, on_events=on_events, warm=warm)

    def names(self, job: str) -> bool:
        """Whether this is the directory of a job, or of a result of one."""
        from edl_horovod.launch.local_jobs import is_ours

        return is_ours(job)

    def jobs(self, place: Mapping[str, str]) -> "LocalJobs":
        """The jobs of this machine."""
        from edl_horovod.launch.local_jobs import LocalJobs

        return LocalJobs()


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
        config = framework_name.with_framework(earlier.with_checkpoint_lanes(with_job_dir(config)))
        tasks.check_start(config)
        job_dir, num_ranks = JobDir.of(config), config.launch.np
        variables = threads_of(config)  # Environment variables that limit each rank's threads.
        if os.geteuid() == 0:  # As is usual in a container.
            # Open MPI runs as root only if both variables allow it.
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return LaunchPlan(
            config=config,
            job_dir=job_dir,
            hosts={LOCAL_HOST: num_ranks},
            ring=mpirun(
                worker_argv(job_dir),
                num_ranks=num_ranks,
                variables=variables,
                flags=("--oversubscribe", "--bind-to", "none"),
                program=locate("mpirun"),
            ),
        )
