"""The list of input files that cannot be prepared, and the limit of their number."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edl_horovod.config.schema import PrepareConfig
from edl_horovod.errors import DataError, OutputError
from edl_horovod.files.output_dir import writing
from edl_horovod.files.whole_file import write_text
from edl_horovod.preparation.groups import BadFile, GroupDone

__all__ = ["check", "require_few_bad", "write"]

_NUM_SHOWN = 10


def check(output: str) -> Path:
    """Return the path of `<output>.bad_files.jsonl`, after checking that it may be written.

    Raises:
        OutputError: The file exists and is not such a list.
    """
    path = Path(f"{os.path.abspath(output)}.bad_files.jsonl")
    with writing(path):
        try:
            lines = path.read_bytes().splitlines()
            is_ours = all(json.loads(line).keys() == {"path", "reason"} for line in lines)
        except FileNotFoundError:
            is_ours = True
        except (ValueError, AttributeError):
            is_ours = False
    if not is_ours or path.is_symlink():
        raise OutputError(
            f"{path} is the path for the list of bad files, but edl_horovod did not write the"
            " existing file.",
            received={"output": output},
            hint="Move the file, or choose another output.",
        )
    return path


def write(output: str, bad: Sequence[BadFile]) -> str:
    """Write `<output>.bad_files.jsonl`, or remove an older one if there are no bad files.

    Returns:
        The path; empty if there are no bad files.
    """
    path = check(output)
    with writing(path):
        if not bad:
            path.unlink(missing_ok=True)
            return ""
        write_text(path, "".join(f"{json.dumps(asdict(bad_file))}\n" for bad_file in bad))
    return str(path)


def require_few_bad(config: PrepareConfig, groups: Sequence[GroupDone]) -> None:
    """Raise if there are more bad files than the settings allow.

    Raises:
        DataError: There are too many bad files; the list has been written.
    """
    bad = list(dict.fromkeys(bad_file for group in groups for bad_file in group.bad))
    max_bad_files = config.max_bad_files if config.bad_files == "skip" else 0
    if len(bad) <= max_bad_files:
        return
    path = write(config.output, bad)
    bad_lines = "".join(f"\n  {bad_file.path}: {bad_file.reason}" for bad_file in bad[:_NUM_SHOWN])
    more = f"\n  and {len(bad) - _NUM_SHOWN} more" if len(bad) > _NUM_SHOWN else ""
    listing = f"All bad files so far are listed in {path}:{bad_lines}{more}"
    if config.bad_files == "skip":
        raise DataError(
            f"{len(bad)} input files cannot be prepared.",
            received={"max_bad_files": max_bad_files},
            hint=f"Raise max_bad_files, or repair the files. {listing}",
        )
    raise DataError(
        f"{len(bad)} input files cannot be prepared.",
        hint=f"Repair them, or skip them with bad_files=skip. {listing}",
    )
