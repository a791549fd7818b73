"""The log file of a process."""

import logging
from pathlib import Path

from edl_horovod.job import log


def test_a_full_disk_loses_lines_and_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "launcher.log"
    path.symlink_to("/dev/full")

    with log.also_to(path, "launcher"):
        logging.getLogger("edl_horovod.test").warning("lost")
