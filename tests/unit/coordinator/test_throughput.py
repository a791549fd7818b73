from edl_horovod.coordinator.autoscale import Throughput
from tests.job_events import recorded


def step(time, records, size=2):
    return recorded("step", time, records_seen=records, size=size)


def steps(first, last, rate=100.0, size=2):
    """An event each 0.2 s."""
    times = [first + 0.2 * n for n in range(round((last - first) / 0.2) + 1)]
    return [step(time, round(rate * (time - first)), size) for time in times]


def rates(events):
    return [(sample.size, round(sample.rate)) for sample in Throughput().samples(events)]


def test_a_second_of_training_is_a_sample_after_the_first():
    assert rates(steps(0, 3.6)) == [(2, 100)] * 2


def test_a_change_of_the_ring_begins_anew():
    events = [*steps(0, 1.6), recorded("generation"), *steps(10, 11.6, size=3)]
    assert rates(events) == []


def test_time_of_an_evaluation_does_not_count():
    events = [*steps(0, 2.9), recorded("evaluation"), *steps(60, 62.9)]
    assert {rate for _, rate in rates(events)} == {100}


def test_short_epochs_add_up_to_samples():
    events = []
    for epoch in range(12):
        events += [*steps(10.0 * epoch, 10.0 * epoch + 0.4), recorded("evaluation")]
    assert rates(events) == [(2, 100)] * 3


def test_steps_while_a_newcomer_is_given_the_state_are_no_sample():
    grown = recorded("reset", new_size=2)
    events = [*steps(0, 2.9, size=1), grown, *steps(10, 19, size=1), *steps(19.2, 21.5)]
    assert [size for size, _ in rates(events)] == [1, 2]


def test_other_events_say_nothing():
    assert rates([recorded("log"), recorded("worker"), step(0, 0)]) == []
