"""The command `edl`, whose jobs have `tests.dying_worker` as their worker."""

import sys
from dataclasses import replace

from edl_horovod.cli.main import main
from edl_horovod.launch.local import LocalTarget
from edl_horovod.launch.target import TARGETS


class DyingWorkers(LocalTarget):
    def plan(self, config):
        plan = super().plan(config)
        argv = [
            "tests.dying_worker" if word == "edl_horovod.worker" else word
            for word in plan.worker.argv
        ]
        return replace(plan, worker=replace(plan.worker, argv=tuple(argv)))


if __name__ == "__main__":
    TARGETS["local"] = DyingWorkers
    sys.exit(main())
