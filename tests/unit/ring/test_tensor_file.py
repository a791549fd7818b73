"""A file of tensors is what was written, or it is refused."""

import json
import os
import resource
import signal

import ml_dtypes
import numpy as np
import pytest

from edl_horovod.ring.checkpoint import DamagedFile, read_tensors, write_tensors

TENSORS = {
    "flag": np.array(True),
    "kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "counter": np.array(-7, np.int64),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "seed": np.array([1, 2**32 - 1], np.uint32),
    "nothing": np.zeros((0, 3), np.float64),
    "turn": np.array([[1 + 2j, -3j]], np.complex128),
    "wave": np.array(2 - 1j, np.complex64),
    "short": np.array([0.5, -2.0], ml_dtypes.float8_e4m3fn),
}


def write(path, **metadata):
    return write_tensors(path, TENSORS, {"step": "12", **metadata})


def test_what_is_written_is_read_back(tmp_path):
    size = write(tmp_path / "a")
    tensors, metadata = read_tensors(tmp_path / "a")
    assert size == (tmp_path / "a").stat().st_size
    assert metadata == {"step": "12"}
    assert set(tensors) == set(TENSORS)
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert tensors[name].shape == value.shape
        np.testing.assert_array_equal(tensors[name], value)


def test_the_layout_is_that_of_safetensors(tmp_path):
    write(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    entry = header["kernel"]
    start, end = entry["data_offsets"]
    assert (entry["dtype"], entry["shape"]) == ("F32", [3, 4])
    assert content[8 + length :][start:end] == TENSORS["kernel"].tobytes()
    assert max(e["data_offsets"][1] for n, e in header.items() if n[0] != "_") == (
        len(content) - 8 - length
    )
    assert all(isinstance(value, str) for value in header["__metadata__"].values())


def test_every_changed_byte_is_found(tmp_path):
    path = tmp_path / "a"
    write(path)
    good = path.read_bytes()
    unseen = []
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        try:
            read_tensors(path)
            unseen.append(place)
        except DamagedFile:
            pass
    # A blank behind the header's JSON is none of its content.
    assert [place for place in unseen if good[place : place + 1] != b" "] == []


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_that_is_cut_off_is_refused(tmp_path, share):
    path = tmp_path / "a"
    os.truncate(path, int(write(path) * share))
    with pytest.raises(DamagedFile):
        read_tensors(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # What a full disk does: the first bytes are written, the rest are not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write(path, step="13")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert read_tensors(path)[1] == {"step": "12"}
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
