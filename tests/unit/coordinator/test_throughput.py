import pytest

from edl_horovod.coordinator.autoscale import Throughput
from tests.job_events import recorded


def step(time, records, size=2):
    return recorded("step", time, records_seen=records, size=size)


def steps(first, last, rate=100.0, size=2):
    """An event each 0.2 s."""
    times = [first + 0.2 * n for n in range(round((last - first) / 0.2) + 1)]
    return [step(time, round(rate * (time - first)), size) for time in times]


SHORT_EPOCHS = [
    event
    for epoch in range(12)
    for event in (*steps(10.0 * epoch, 10.0 * epoch + 0.4), recorded("evaluation"))
]
GROWN = recorded("reset", new_size=2)
CASES = {
    "a second of training is a sample after the first": (steps(0, 3.6), [(2, 100)] * 2),
    "a change of the ring begins again": (
        [*steps(0, 1.6), recorded("generation"), *steps(10, 11.6, size=3)],
        [],
    ),
    "time of an evaluation does not count": (
        [*steps(0, 2.9), recorded("evaluation"), *steps(60, 62.9)],
        [(2, 100)] * 4,
    ),
    "short epochs add up to samples": (SHORT_EPOCHS, [(2, 100)] * 3),
    "steps while a newcomer is given the state are no sample": (
        [*steps(0, 2.9, size=1), GROWN, *steps(10, 19, size=1), *steps(19.2, 21.5)],
        [(1, 100), (2, 100)],
    ),
    "other events say nothing": ([recorded("log"), recorded("worker"), step(0, 0)], []),
}


@pytest.mark.parametrize(("events", "expected"), CASES.values(), ids=CASES.keys())
def test_samples_of_the_rate(events, expected):
    samples = Throughput().samples(events)
    assert [(sample.size, round(sample.rate)) for sample in samples] == expected
