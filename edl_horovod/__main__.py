"""`python -m edl_horovod` is the command `edl`."""

import sys

from edl_horovod.cli.main import main

sys.exit(main())
