"""What the programs have in common that a launcher or a pod starts with a job's settings."""

import argparse
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import EdlError
from edl_horovod.job import log as logs

log = logging.getLogger(__name__)


def run_program(
    description: str | None,
    act: Callable[[JobConfig, argparse.Namespace], int | None],
    *,
    source: str = "",
    **arguments: dict[str, Any],
) -> int:
    """Read the settings that `--config` names, act, and return the process' exit code.

    Args:
        description: The program's docstring.
        act: Does the work; returns the exit code, or None for 0. An EdlError ends the program.
        source: The name of the process in the log; empty for that of its first argument, `role`.
        **arguments: Further arguments, as `add_argument` takes them.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    for name, options in arguments.items():
        parser.add_argument(name if name == "role" else f"--{name}", **options)
    parser.add_argument("--config", type=Path, required=True, help="the job's resolved config.yaml")
    args = parser.parse_args()
    try:
        config = resolved.load(args.config)
        logs.setup(source or args.role, level=config.log_level)
        return act(config, args) or 0
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


def end_requested() -> Callable[[], bool]:
    """Handle SIGTERM from now on; the returned function says whether it has come."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: received.append(number))
    return lambda: bool(received)
