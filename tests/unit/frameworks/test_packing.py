"""Buckets hold each gradient once, from the last to the first."""

from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.frameworks.packing import in_buckets

TENSORS = st.tuples(st.integers(0, 160), st.sampled_from(["float32", "float16", "float64"]))


@given(st.lists(TENSORS, max_size=12), st.integers(1, 200))
def test_buckets_hold_all_in_reverse_and_are_no_larger_than_asked_for(tensors, most_bytes):
    sizes, kinds = [size for size, _ in tensors], [kind for _, kind in tensors]
    buckets = in_buckets(sizes, kinds, most_bytes, "name")
    assert [place for bucket in buckets for place in bucket.places] == [*range(len(sizes))][::-1]
    assert [bucket.name for bucket in buckets] == [f"name.{n}" for n in range(len(buckets))]
    for bucket in buckets:
        assert len({kinds[place] for place in bucket.places}) == 1
        size = sum(sizes[place] for place in bucket.places)
        assert size <= most_bytes or len(bucket.places) == 1


def test_a_bucket_is_not_closed_before_it_is_full():
    buckets = in_buckets([40] * 5, ["float32"] * 5, 80, "")
    assert [bucket.places for bucket in buckets] == [(4, 3), (2, 1), (0,)]
