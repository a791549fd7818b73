"""What the benchmarks over networks compute from steps, and what they keep."""

import dataclasses
import math

import pytest

from tests.later import LATER

if LATER:
    from benchmarks.network import scaling
    from benchmarks.network.events import join_of
    from benchmarks.network.namespace import Rate, rate_in
    from benchmarks.network.scaling import AlphaBeta, Step
    from benchmarks.network.speed import CONV, num_steps, speed_line, step_seconds
    from benchmarks.run import Failure, SideFailed
    from benchmarks.stamps import Stamp

    FAST = Rate(name="fast", bits_per_second=0.0)
    SLOW = Rate(name="slow", bits_per_second=1e9)


def stamps(*ends):
    return [Stamp(at=at, step=number, size=2) for number, at in enumerate(ends, start=1)]


def test_steps_of_each_rate_are_those_that_are_whole_in_its_span_but_the_first():
    # The rate changes at 4.5, in the step from 4 to 6.
    ends = stamps(1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 11.0, 13.0)
    assert step_seconds(ends, [(FAST, 0.5), (SLOW, 4.5)]) == {"fast": 1.0, "slow": 2.0}


def test_a_rate_without_a_whole_step_is_told():
    with pytest.raises(SideFailed, match="slow"):
        step_seconds(stamps(1.0, 2.0, 3.0, 4.0, 6.0), [(FAST, 0.5), (SLOW, 3.5)])


def test_a_training_has_a_warmup_and_at_each_rate_two_steps_that_do_not_count():
    assert num_steps(8, 3, 2) == 3 + 2 * 10


TBF = '[{"kind":"tbf","handle":"8001:","root":true,"options":{"rate":125000000,"lat":50000}}]'
NO_FILTER = '[{"kind":"noqueue","root":true,"options":{}}]'


@pytest.mark.parametrize(("shown", "rate"), [(TBF, 1e9), ("", 0.0), ("[]", 0.0), (NO_FILTER, 0.0)])
def test_rate_is_read_from_what_tc_prints(shown, rate):
    assert rate_in(shown) == rate


def test_a_ratio_takes_the_repetitions_in_which_both_sides_ran():
    ours = [{"slow": 1.0}, Failure(reason="out of memory"), {"slow": 2.0}]
    peers = [{"slow": 1.5}, {"slow": 9.0}, {"slow": 2.0}]
    line = speed_line(CONV, SLOW, ours, peers, "a peer", least_median=1.05)
    assert line.values == (1.5, 1.0)
    assert line.is_reached
    assert "memory" in line.detail


def test_a_ratio_without_a_side_is_not_reached_and_says_why():
    ours = [Failure(reason="no such setting")]
    line = speed_line(CONV, SLOW, ours, [{"slow": 1.0}], "a peer", least_median=1)
    assert line.is_reached is False
    assert line.detail == "no such setting"


def steps_of(*spans):
    """Stamps of steps of some lengths: (number, seconds, size)."""
    steps, at = [Stamp(at=0.0, step=0, size=1)], 0.0
    for number, seconds, size in spans:
        for _ in range(number):
            at += seconds
            steps.append(Stamp(at=at, step=len(steps), size=size))
    return steps


def test_the_steps_of_a_join_are_held_against_its_median_one():
    # Alone 1 s a step; then two, of which one is given the state: 3 s, 2.5 s, 2 s; then 1.6 s.
    steps = steps_of((20, 1.0, 1), (1, 3.0, 2), (1, 2.5, 2), (8, 2.0, 2), (8, 1.6, 2))
    join = join_of(steps, since=18.5, works_at=steps[29].at, size=2)
    assert join.stall_seconds == pytest.approx(1.0)
    assert join.slower_percent == pytest.approx(25.0)
    assert join.median_percent == pytest.approx(25.0)
    assert join.seconds == pytest.approx(3.0 + 2.5 + 7 * 2.0)


def test_a_state_that_is_sent_at_once_is_held_against_the_steps_after_it():
    steps = steps_of((20, 1.0, 1), (1, 3.0, 2), (8, 2.0, 2))
    join = join_of(steps, since=18.5, works_at=steps[21].at, size=2)
    assert join.stall_seconds == pytest.approx(1.0)
    assert join.median_percent == pytest.approx(0.0)


@pytest.mark.parametrize(
    "parts", [((3, 1.0, 1),), ((9, 1.0, 2),), ((9, 1.0, 1), (3, 1.0, 2))], ids=str
)
def test_a_join_without_enough_steps_is_told(parts):
    with pytest.raises(ValueError, match="few steps"):
        join_of(steps_of(*parts), since=2.5, works_at=5.0, size=2)


if LATER:
    TRUTH = AlphaBeta(num_bytes=94e6, alpha_seconds=2e-3, seconds_per_byte=2e-9, overlap=0.7)


def steps_of_model(model):
    steps = [
        Step(num_ranks=size, compute_seconds=compute, bits_per_second=rate, step_seconds=0.0)
        for size, compute in ((2, 0.8), (4, 1.6))
        for rate in (math.inf, 4e9, 1e9)
    ]
    return [dataclasses.replace(s, step_seconds=model.shared_step_seconds(s)) for s in steps]


def test_a_fit_finds_the_parameters_that_made_the_steps():
    fit = scaling.fit(steps_of_model(TRUTH), TRUTH.num_bytes, TRUTH.alpha_seconds)
    for step in steps_of_model(TRUTH):
        assert fit.shared_step_seconds(step) == pytest.approx(step.step_seconds, rel=0.01)
    assert fit.overlap == pytest.approx(0.7, abs=0.05)


def test_a_step_of_large_rings_comes_to_the_time_of_sending_twice_the_bytes():
    wire = dataclasses.replace(TRUTH, alpha_seconds=0.0, seconds_per_byte=0.0, overlap=1.0)
    assert wire.step_seconds(1, 0.5, 1e9) == 0.5
    assert wire.step_seconds(10**6, 0.5, 1e9) == pytest.approx(2 * 94e6 * 8 / 1e9, rel=1e-5)


def test_a_shared_link_carries_the_bytes_of_all_ranks():
    wire = dataclasses.replace(TRUTH, alpha_seconds=0.0, seconds_per_byte=0.0, overlap=1.0)
    four = Step(num_ranks=4, compute_seconds=0.1, bits_per_second=1e9, step_seconds=0.0)
    assert wire.shared_step_seconds(four) == pytest.approx(4 * wire.step_seconds(4, 0.1, 1e9))


def test_scaling_shows_the_fit_its_residuals_and_that_it_is_a_model():
    alone = Step(num_ranks=1, compute_seconds=0.4, bits_per_second=math.inf, step_seconds=0.4)
    results = scaling.results_of([alone, *steps_of_model(TRUTH)], TRUTH.num_bytes, 2e-3)
    text = "\n".join(results.notes)
    assert "A model," in text
    assert "| 512 |" in text
    assert text.count("| 4 |") == 3
