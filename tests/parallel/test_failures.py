"""The installed Horovod says of real failures what the adapter's golden messages have it say."""

import json

import pytest

from tests.frameworks import FRAMEWORKS

SHUT_DOWN = "Horovod has been shut down."
LOST = (SHUT_DOWN, "Connection closed by peer [127.0.0.1]:", "Read error [127.0.0.1]:")
"""Which of them it is depends on where the other ranks are when a member is lost."""
NOT_FORMED = (
    "the ring could not be formed: Horovod initialization failed. Please check log messages above "
    "for a more descriptive error."
)
MESSAGES = {
    "eager, a member is lost": LOST,
    "eager, after the loss": SHUT_DOWN,
    "graph, a member is lost": LOST,
    "graph, after the loss": SHUT_DOWN,
    "large, a member is lost": LOST,
    "large, after the loss": SHUT_DOWN,
    "forming, nobody listens": NOT_FORMED,
    "forming, nobody connects": NOT_FORMED,
    "forming, no address": NOT_FORMED,
    "forming, no rendezvous": NOT_FORMED,
}


@pytest.mark.long
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_adapter_knows_what_horovod_says_of_real_failures(run_ranks, framework):
    output, log = run_ranks("real_failures", RING_FRAMEWORK=framework)
    failures = {failure["kind"]: failure for failure in map(json.loads, output.splitlines())}
    # Only one of them has graphs.
    has_graphs = framework == "keras"
    known = {k: text for k, text in MESSAGES.items() if has_graphs or not k.startswith("graph")}
    assert set(failures) == set(known), log
    for kind, expected in known.items():
        assert failures[kind]["message"].startswith(expected), (failures[kind], log)
        assert failures[kind]["unreached"] == []
