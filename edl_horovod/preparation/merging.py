"""Put shards together: RecordIO files back to back are a RecordIO file with the chunks of all."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from edl_horovod.preparation.groups import Shard

__all__ = ["merge", "together"]


def together(
    shards: Sequence[Shard], *, records_per_shard: int, bytes_per_shard: int
) -> list[list[Shard]]:
    """Consecutive shards that become one file each, within the bounds of a file.

    Groups are small where there are few input files, so that all processes have something to do.
    """
    files: list[list[Shard]] = []
    num_records = num_bytes = 0
    for shard in shards:
        num_records += shard.num_records
        num_bytes += shard.num_bytes
        if not files or num_records > records_per_shard or num_bytes > bytes_per_shard:
            files.append([])
            num_records, num_bytes = shard.num_records, shard.num_bytes
        files[-1].append(shard)
    return files


def merge(files: Sequence[Sequence[Shard]], source: Path, target: Path) -> list[str]:
    """Write files, each of some shards, from one folder into another on the same file system.

    The shards stay, so that nothing is lost if this is interrupted. Each file has the name of its
    first shard.

    Returns:
        The names of the files.

    Raises:
        OSError: The disk is full or fails.
    """
    for shards in files:
        path = target / shards[0].name
        if len(shards) == 1 and _linked(source / shards[0].name, path):
            continue
        with path.open("xb") as file:
            for shard in shards:
                with (source / shard.name).open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
    return [shards[0].name for shards in files]


def _linked(source: Path, target: Path) -> bool:
    """Whether a file could be given a second name; some network file systems have one each."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
