"""`python -m benchmarks.kube`: host discovery with many pods, the coordinator with many workers."""

import sys

from benchmarks.kube import scale
from benchmarks.report import Page, main

PAGE = Page(
    module="benchmarks.kube",
    description="How host discovery and the coordinator scale.",
    parts={"discovery": scale.measure_discovery, "coordinator": scale.measure_coordinator},
)


if __name__ == "__main__":
    sys.exit(main(PAGE))
