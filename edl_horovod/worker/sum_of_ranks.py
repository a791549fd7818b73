"""`python -m edl_horovod.worker.sum_of_ranks FRAMEWORK`: add the ranks' numbers, under horovodrun.

The first rank prints a line with the sum, and with the version of Horovod's patch and a warning if
that is missing or old.
"""

import json
import sys
from importlib import import_module

from edl_horovod.config.frameworks import FRAMEWORKS
from edl_horovod.frameworks.base import Framework
from edl_horovod.frameworks.horovod import patch_warning


def main() -> None:
    """Add 1, 2, ... over the ring."""
    framework: Framework = import_module(FRAMEWORKS[sys.argv[1]].module).FRAMEWORK
    world = framework.horovod.form_inherited()
    rows = framework.collectives.gather_rows([world.rank + 1], "edl.doctor")
    if world.is_leader:
        patch = framework.horovod.patch_version()
        outcome = {"sum": int(rows.sum()), "patch": patch, "warning": patch_warning(patch) or ""}
        sys.stdout.write(f"SUM {json.dumps(outcome)}\n")
    framework.horovod.leave()


if __name__ == "__main__":
    main()
