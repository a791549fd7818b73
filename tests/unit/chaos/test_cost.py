from edl_horovod.chaos import cost_of
from tests.job_events import recorded


def steps(*points):
    return [recorded("step", at, records_seen=records) for at, records in points]


def reset(at, seconds):
    return recorded("reset", at, seconds=seconds)


def test_goodput_compares_the_disturbed_time_with_the_quiet_time_before():
    events = [
        *steps((1.0, 0)),
        reset(2.0, 3.0),
        *steps((2.0, 100), (6.0, 500), (10.0, 900)),
        reset(11.0, 0.2),
        *(recorded("worker", 11.0, state=state) for state in ("lost", "lost", "returned")),
        reset(13.0, 0.4),
        *steps((20.0, 1400)),
    ]
    cost = cost_of(events, first=10.5, last=20.0)
    assert (cost.quiet_seconds, cost.quiet_records_per_second) == (8.0, 100.0)
    assert (cost.disturbed_seconds, cost.disturbed_records_per_second) == (9.5, 50.0)
    assert cost.goodput == 0.5
    assert (cost.num_resets, cost.num_lost_workers) == (2, 1)
    assert round(cost.median_reset_seconds, 3) == 0.3
    assert cost.max_reset_seconds == 0.4


def test_a_stall_at_the_end_counts():
    events = steps((0.0, 0), (10.0, 1000), (15.0, 1500))
    assert cost_of(events, first=10.1, last=30.0).goodput == 0.25


def test_too_little_time_gives_no_goodput():
    cost = cost_of(steps((0.0, 0), (0.5, 10), (9.0, 100)), first=0.6, last=9.0)
    assert (cost.quiet_records_per_second, cost.goodput) == (None, None)
    assert cost.disturbed_records_per_second is not None


def test_nothing_happened_without_events():
    cost = cost_of([], first=1.0, last=2.0)
    assert (cost.goodput, cost.num_resets, cost.median_reset_seconds) == (None, 0, None)
