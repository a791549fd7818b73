"""The command `edl`, whose jobs have `tests.dying_worker` as their worker."""

import sys
from dataclasses import replace

from edl_horovod.cli.main import main
from edl_horovod.supervisor import run as job
from edl_horovod.supervisor.plan import make_plan


def plan_with_dying_workers(config):
    plan = make_plan(config)
    argv = [
        "tests.dying_worker" if word == "edl_horovod.worker" else word for word in plan.worker.argv
    ]
    return replace(plan, worker=replace(plan.worker, argv=tuple(argv)))


if __name__ == "__main__":
    job.make_plan = plan_with_dying_workers
    sys.exit(main())
