"""Which checkpoints stay when another one has been written."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.job import checkpoint_files

STEPS = st.sets(st.integers(0, 10**10), max_size=40)


@given(steps=STEPS, keep=st.integers(1, 50), data=st.data())
def test_as_many_stay_as_are_to_be_kept_and_they_are_the_newest(steps, keep, data):
    written = data.draw(st.integers(0, 10**10))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for step in {*steps, written}:
            checkpoint_files.path_of(folder, step).touch()

        checkpoint_files.remove_older(folder, written, keep=keep)

        up_to_it = sorted(step for step in {*steps, written} if step <= written)
        newer = sorted(step for step in steps if step > written)
        assert checkpoint_files.steps_in(folder) == up_to_it[-keep:] + newer
