"""Secure sums of models of both frameworks: they train as they do with plain sums."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from edl_horovod.config.schema import FederatedConfig
from edl_horovod.frameworks.values import Batch
from edl_horovod.tasks.federated import Party, local_config
from edl_horovod.tasks.local_rounds import LocalRounds
from tests.jobs import training
from tests.later import LATER, later
from tests.thread_ring import Ring

if LATER:
    from tests.component.frameworks.both import steps
    from tests.component.frameworks.both.steps import run, values_of
    from tests.component.frameworks.both.test_federated import BATCH, batch_of

PARTIES, ROUNDS, STEPS, RANGE = 3, 3, 2, 32.0
PARAMS = {"batch_norm": True}
"""So that the model has variables that no optimizer changes; PyTorch's count batches as well."""


@dataclass(frozen=True)
class Round:
    """The examples of a party's round."""

    first: int
    framework: type
    batches: "OneLane"

    def steps_of(self, lane):
        for number in range(STEPS):
            yield batch_of(self.first + number, self.framework)


class OneLane:
    lanes = range(1)


def train(framework, folder, *, secure_sums):
    """Train parties; returns the results of the rounds, and the variables of each party."""
    ring, parties = Ring(PARTIES), []
    for at in range(PARTIES):
        (folder / str(at)).mkdir(parents=True)
        config = FederatedConfig(rounds=ROUNDS, party=f"p{at}", secure_sums=secure_sums)
        job = training(BATCH, job_dir=str(folder / str(at)), federated=config)
        step = framework.make_step(job, params=PARAMS)
        rounds = LocalRounds(step, ring.of(at), local_config(config), "none", Party(job))
        parties.append((at, rounds))

    def run_party(party):
        at, rounds = party
        results = []
        for number in range(ROUNDS):
            first = 100 * at + STEPS * number
            batch = Batch(Round(first, framework, OneLane()), None, 0)
            results.append(run(rounds, batch, is_alone=False))
        return results

    with ThreadPoolExecutor(PARTIES) as pool:
        results = list(pool.map(run_party, parties))
    return results, [list(values_of(rounds.model_variables).values()) for _, rounds in parties]


@pytest.mark.long
@pytest.mark.parametrize("framework", [later("steps.Keras"), later("steps.Torch")])
def test_a_model_trains_by_secure_sums_as_by_plain_ones(framework, tmp_path):
    results, variables = train(framework, tmp_path / "plain", secure_sums=False)
    secure_results, secure_variables = train(framework, tmp_path / "secure", secure_sums=True)
    for plain, secure in zip(results[0], secure_results[0], strict=True):
        assert secure.num_examples == plain.num_examples == PARTIES * STEPS * BATCH
        assert secure.loss == pytest.approx(plain.loss, rel=1e-4)
        assert secure.metrics == pytest.approx(plain.metrics, rel=1e-4)
    kinds = set()
    for values in secure_variables:
        for value, expected, first in zip(values, variables[0], secure_variables[0], strict=True):
            kinds.add(value.dtype.kind)
            # Adam divides by the size of a gradient, so that it enlarges what rounding changes.
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(value, first)
    assert "f" in kinds
    assert ("i" in kinds) == (framework is steps.Torch)
