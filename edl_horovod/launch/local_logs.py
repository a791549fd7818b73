"""The logs of a job on this machine: one file for each process that writes one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edl_horovod.errors import ConfigError
from edl_horovod.launch.jobs import LogLine

__all__ = ["read_logs"]

LOOK_SECONDS = 0.2
"""Between two looks for new lines."""


def read_logs(
    folder: Path, *, only: str, tail: int | None, is_over: Callable[[], bool] | None
) -> Iterator[LogLine]:
    """The lines of all logs, file by file, or as they come.

    Args:
        folder: The job's logs.
        only: One process, by the name of its log or as `host:slot`; empty takes all.
        tail: Only so many of the last lines of each log.
        is_over: Whether the job has ended, so that nothing more comes; None does not wait.

    Raises:
        ConfigError: There is no such log.
    """
    name = f"worker-{only.rpartition(':')[2]}" if ":" in only else only
    logs = sorted(path.stem for path in folder.glob("*.log"))
    if name and name not in logs:
        raise ConfigError(
            "The job has no log of that process.",
            received=repr(only),
            hint=f"Its logs are {', '.join(logs)}.",
        )
    return _lines(folder, f"{name or '*'}.log", tail, is_over)


def _lines(
    folder: Path, pattern: str, tail: int | None, is_over: Callable[[], bool] | None
) -> Iterator[LogLine]:
    offsets: dict[Path, int] = {}
    while True:
        is_last = is_over is None or is_over()
        for path in sorted(folder.glob(pattern), key=lambda path: (path.stem != "launcher", path)):
            is_new = path not in offsets
            with path.open("rb") as stream:
                stream.seek(offsets.get(path, 0))
                text = stream.read()
            if not is_last:  # A line that is half written waits for its end.
                text = text[: text.rfind(b"\n") + 1]
            offsets[path] = offsets.get(path, 0) + len(text)
            lines = text.decode(errors="replace").splitlines()
            if is_new and tail is not None:
                lines = lines[-tail:] if tail else []
            yield from (LogLine(path.stem, line) for line in lines)
        if is_last:
            return
        time.sleep(LOOK_SECONDS)
