"""The same rows are held back whenever and in whatever pieces they are asked about."""

import numpy as np
import pytest

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.training_rows import Split

KINDS = [
    ("random", lambda split, first, count: split.by_number(first, count)),
    ("sequential", lambda split, first, count: split.by_number(first, count, num_rows=10_000)),
    (
        "key",
        lambda split, first, count: split.by_key([(n, "x") for n in range(first, first + count)]),
    ),
]


@pytest.mark.parametrize(("kind", "ask"), KINDS)
def test_the_rows_are_the_same_in_any_pieces(kind, ask):
    split = Split(kind=kind, fraction=0.2)
    whole = ask(split, 0, 10_000)
    pieces = [ask(split, first, 100) for first in range(0, 10_000, 100)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert 0.18 < whole.mean() < 0.22


def test_the_last_rows_are_held_back_exactly():
    held = Split(kind="sequential", fraction=0.25).by_number(0, 10, num_rows=10)
    assert held.tolist() == [False] * 8 + [True] * 2


def test_another_seed_holds_other_rows_back():
    for kind, ask in KINDS[::2]:
        rows = [ask(Split(kind=kind, fraction=0.5, seed=seed), 0, 1000) for seed in (0, 1)]
        assert 400 < np.sum(rows[0] != rows[1]) < 600


def test_a_row_stays_on_its_side_when_others_come_and_however_a_driver_gives_its_key():
    split = Split(kind="key", fraction=0.5)
    keys = [(number,) for number in range(100)]
    before = dict(zip(keys, split.by_key(keys), strict=True))
    later = [*keys[::-1], (1000,)]
    after = dict(zip(later, split.by_key(later), strict=True))
    assert {key: after[key] for key in keys} == before
    assert split.by_key([(float(n),) for n in range(100)]).tolist() == list(before.values())


def test_a_column_says_it_itself():
    split = Split(kind="column", column="held")
    assert split.by_column([True, 0, 1, False]).tolist() == [True, False, True, False]
    for value in (None, 2, "yes", 1.0):
        with pytest.raises(DataError, match="row 13"):
            split.by_column([0, value], first_row=11)


@pytest.mark.parametrize(
    "settings",
    [{"kind": "rondom"}, {"fraction": 1}, {"kind": "column"}, {"kind": "key", "column": "a"}],
)
def test_what_means_nothing_is_refused(settings):
    with pytest.raises(ConfigError):
        Split(**settings)
