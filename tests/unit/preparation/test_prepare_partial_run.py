"""Finished shards become as many files as the data needs, with their records in order."""

from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.preparation.groups import Shard
from edl_horovod.preparation.partial_run import combine, merge
from edl_horovod.records.chunks import Codec
from tests.unit.records.record_files import read, write


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 300)), min_size=1, max_size=50),
    records_per_shard=st.integers(20, 60),
    bytes_per_shard=st.integers(300, 1000),
)
def test_files_keep_the_order_and_their_bounds_and_no_two_would_fit_into_one(
    sizes, records_per_shard, bytes_per_shard
):
    shards = [
        Shard(name=str(number), num_records=records, num_bytes=num_bytes)
        for number, (records, num_bytes) in enumerate(sizes)
    ]
    bounds = {"records_per_shard": records_per_shard, "bytes_per_shard": bytes_per_shard}
    files = combine(shards, **bounds)

    assert [shard for file in files for shard in file] == shards
    for file, following in zip(files, [*files[1:], None], strict=True):
        assert file
        longer = [*file, *(following or [])[:1]]
        for part, fits in ((file, True), (longer, following is None)):
            records = sum(shard.num_records for shard in part)
            num_bytes = sum(shard.num_bytes for shard in part)
            assert (records <= records_per_shard and num_bytes <= bytes_per_shard) == fits


def test_a_merged_file_has_the_records_of_all_and_the_shards_stay(tmp_path):
    shards, expected = [], []
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    for number, codec in enumerate(Codec):
        name, records = f"part-{number}.recordio", [b"%d of %d" % (n, number) for n in range(50)]
        write(tmp_path / "from" / name, records, codec=codec, chunk_bytes=100)
        expected += records
        shards.append(Shard(name=name, num_records=50, num_bytes=0))

    names = merge([shards[:2], shards[2:]], tmp_path / "from", tmp_path / "to")

    assert names == ["part-0.recordio", "part-2.recordio"]
    assert read(tmp_path / "to") == read(tmp_path / "from") == expected
