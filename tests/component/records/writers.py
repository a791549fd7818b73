"""Rows of numbers as files of the formats that hold no checksums of their records."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

from tests.mds_shards import shard


def table(rows):
    """Scalars, or lists of one length, beside their numbers."""
    is_lists = rows.ndim > 1
    x = pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1]) if is_lists else rows
    return pa.table({"x": x, "n": np.arange(len(rows))})


def arrow(path, rows, *, compression="uncompressed", chunksize=1000):
    feather.write_feather(table(rows), str(path), compression=compression, chunksize=chunksize)


def parquet(path, rows, *, row_group_size=1000, **options):
    pq.write_table(table(rows), path, row_group_size=row_group_size, **options)


def tar(path, rows):
    with tarfile.open(path, "w") as archive:
        for number, row in enumerate(rows):
            info = tarfile.TarInfo(f"{number:05d}.x")
            info.size = row.nbytes
            archive.addfile(info, io.BytesIO(row.tobytes()))


def mds(path, rows):
    samples, kind = [row.tobytes() for row in rows], f"ndarray:float64:{rows.shape[1]}"
    path.write_bytes(shard(samples, [kind], [rows[0].nbytes], ["x"]))
