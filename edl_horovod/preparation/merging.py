"""Concatenation of shards: concatenated RecordIO files are a valid RecordIO file."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from edl_horovod.preparation.groups import Shard

__all__ = ["merge", "combine"]


def combine(
    shards: Sequence[Shard], *, records_per_shard: int, bytes_per_shard: int
) -> list[list[Shard]]:
    """Group consecutive shards into files, within the limits of a file.

    Shards can be small: with few input files the groups are small, so that all processes have work.
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
    """Concatenate the shards of each file from one folder to another on the same file system.

    The shards are not removed, so that nothing is lost after an interruption. Each file has the
    name of its first shard.

    Returns:
        The names of the files.

    Raises:
        OSError: The disk is full or has an error.
    """
    for shards in files:
        path = target / shards[0].name
        if len(shards) == 1 and _link(source / shards[0].name, path):
            continue
        with path.open("xb") as file:
            for shard in shards:
                with (source / shard.name).open("rb") as part:
                    shutil.copyfileobj(part, file, 1 << 20)
    return [shards[0].name for shards in files]


def _link(source: Path, target: Path) -> bool:
    """Try to create a hard link, which some network file systems do not support."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
