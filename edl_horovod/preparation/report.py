"""The list of input files that cannot be prepared, and the limit on their number."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edl_horovod.config.prepare import PrepareConfig
from edl_horovod.errors import DataError, OutputError
from edl_horovod.files.output_dir import writing
from edl_horovod.files.whole_file import write_text
from edl_horovod.preparation.groups import BadFile, GroupDone

__all__ = ["check", "require_few_bad", "write"]

_NUM_SHOWN = 10


def check(output: str) -> Path:
    """The path of `<output>.bad_files.jsonl`.

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
            f"{path} is where the list of bad files belongs, and edl_horovod did not write what is"
            " there.",
            received={"output": output},
            cure="Move it away, or give another output.",
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
        write_text(path, "".join(f"{json.dumps(asdict(one))}\n" for one in bad))
    return str(path)


def require_few_bad(config: PrepareConfig, groups: Sequence[GroupDone]) -> None:
    """End the run if there are more bad files than its settings allow.

    Raises:
        DataError: There are too many; the list has been written.
    """
    bad = list(dict.fromkeys(one for group in groups for one in group.bad))
    most = config.max_bad_files if config.bad_files == "skip" else 0
    if len(bad) <= most:
        return
    path = write(config.output, bad)
    shown = "".join(f"\n  {one.path}: {one.reason}" for one in bad[:_NUM_SHOWN])
    more = f"\n  and {len(bad) - _NUM_SHOWN} more" if len(bad) > _NUM_SHOWN else ""
    listed = f"All that were met are in {path}:{shown}{more}"
    if config.bad_files == "skip":
        raise DataError(
            f"{len(bad)} input files cannot be prepared.",
            received={"max_bad_files": most},
            cure=f"Raise it, or mend the files. {listed}",
        )
    raise DataError(
        f"{len(bad)} input files cannot be prepared.",
        cure=f"Mend them, or leave them out with bad_files=skip. {listed}",
    )
