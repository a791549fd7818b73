"""MDS shards as MosaicML's Streaming 0.13.0 wrote one, and as the same bytes in larger numbers."""

import zlib

import numpy as np
import pytest

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.reader import Reader
from tests.columns import read_columns
from tests.mds_shards import shard

# Four samples by MDSWriter: n int, small uint8, x float32, t str, raw bytes, j json,
# v ndarray:float32:2,3, img png of 2 x 1 pixels.
SHARD = zlib.decompress(
    bytes.fromhex(
        "78da9592bf4fc25010c75f018d41f9079c9a371a06290ca40b6030c84288181763a0d002d5f695b40541d284"
        "b018ff07635819348e8e26fc01c6c4c9c9d9c9c43f40effa034c60a1e9dd7defbddedde7bd344208297184bc"
        "825542847c80c9614286b461685d9d5515d6306495b52c2af267b4c35a34ced30bcb6018556663a80f6cc542"
        "d18585340acb36313059324d6920363543b2938228c493b8eca7f41cb43f8649bae28d50756f845b8fce94ae"
        "dc96baa46928dc913d74fdff1d2cf5daebc0ba9a16e73d9f0e442210422acea7bc32bd632a96a5c251447f93"
        "360d53976cc8a92ebb276a4b56db6b8b3538a3aaa9ba6a2f4a7a8ae9f7109c3cdce616593cb7e5522116dd8d"
        "828c158ff2c710e17e09e77ef356e44f216c17f3b993fe5da35683244cb8e707b181dbc5c352fef1a0361ed2"
        "4be8bdeffcfa8fdf7a94019785176c0436c9e26a00c0f993d6019065b738bcf7735f58064838f3539567d3d5"
        "f35f90211330e0a0c8ba0c7548a224f23efb7a5a66101c2e60e026b32962ac42f8c47c8e013f33d95c17a309"
        "c90ed9a86c8e6f9631924e688e11fa460e2459454172a0337f2d8ac338"
    )
)


def test_a_shard_of_the_library_has_the_samples_that_it_was_given(tmp_path):
    (tmp_path / "shard.00000.mds").write_bytes(SHARD)
    (tmp_path / "index.json").write_text("{}")
    columns = read_columns(tmp_path, [3, 0, 1, 2])
    pictures = columns.pop("img")
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert columns == {
        "j": [b'{"k": %d}' % k for k in (3, 0, 1, 2)],
        "n": [2, -1, 0, 1],
        "raw": [bytes(range(k)) for k in (3, 0, 1, 2)],
        "small": [240, 0, 80, 160],
        "t": [("é" * k).encode() for k in (3, 0, 1, 2)],
        "v": [(np.arange(6).reshape(2, 3) + k).tolist() for k in (3, 0, 1, 2)],
        "x": [1.5, 0.0, 0.5, 1.0],
    }
    assert read_columns(tmp_path, [1], columns=["x", "n"]) == {"x": [0.5], "n": [0]}


def test_a_large_shard_is_several_chunks(tmp_path):
    samples = [np.uint32(9000 + n).tobytes() + bytes(9000 + n) for n in range(500)]
    (tmp_path / "a.mds").write_bytes(shard(samples, ["bytes"], [None], ["raw"]))
    with Reader.open(str(tmp_path / "a.mds")) as reader:
        assert reader.index.num_chunks > 3
        ((value, *_),) = reader.read([123])
        assert len(value) == 9123
    numbers = [np.int64(n).tobytes() for n in range(300_000)]
    (tmp_path / "b.mds").write_bytes(shard(numbers, ["int"], [8], ["n"]))
    assert read_columns(tmp_path / "b.mds", [299_999, 5]) == {"n": [299_999, 5]}


def test_what_cannot_become_tensors_is_left_out_by_name(tmp_path):
    path, sample = tmp_path / "a.mds", np.uint32(1).tobytes() + b"x" + bytes(8)
    path.write_bytes(shard([sample], ["pkl", "int"], [None, 8], ["o", "n"]))
    with pytest.raises(DataError, match=r"'o' of .*'pkl'"):
        read_columns(path)
    assert read_columns(path, columns=["n"]) == {"n": [0]}
    with pytest.raises(ConfigError, match="'m'"):
        read_columns(path, columns=["m"])


@pytest.mark.parametrize(
    "content", [SHARD[:-1], SHARD[:30], b"", b"\x28\xb5\x2f\xfd" * 99, SHARD + b"x"]
)
def test_an_invalid_or_truncated_shard_is_an_error(tmp_path, content):
    (tmp_path / "a.mds").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.mds .*shard"):
        read_columns(tmp_path / "a.mds")


def test_a_change_of_the_lengths_is_seen(tmp_path):
    path, changed = tmp_path / "a.mds", bytearray(SHARD)
    changed[int.from_bytes(SHARD[4:8], "little")] += 1
    path.write_bytes(SHARD)
    with Reader.open(str(path)) as reader:
        path.write_bytes(changed)
        with pytest.raises(DataError, match="changed since"):
            reader.read([0])


def test_an_empty_shard_has_no_records(tmp_path):
    (tmp_path / "a.mds").write_bytes(shard([], ["int"], [8], ["n"]))
    with pytest.raises(DataError, match="no records"):
        read_columns(tmp_path / "a.mds")
