"""Federated rounds in both frameworks: the server's optimizers and FedProx, held against NumPy.

And secure sums: models train by them as by plain ones.
"""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.config.schema import FederatedConfig
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.tasks.federated import Party, local_config, local_names
from edl_horovod.tasks.local_rounds import LocalRounds
from tests.jobs import training
from tests.later import LATER, later
from tests.snippets import ROOT, snippets_in
from tests.thread_ring import Ring

if LATER:
    import keras
    import torch

    from tests.component.frameworks.both import steps
    from tests.component.frameworks.both.steps import run, trained_values

KERAS, TORCH = later("Keras"), later("Torch")
FRAMEWORKS = pytest.mark.parametrize("framework", [KERAS, TORCH])
BATCH, RATE, MU = 8, 0.1, 0.5
ROUNDS, STEPS = 3, 3
PARTIES, PARTY_STEPS = 3, 2
JOB = training(BATCH, federated=FederatedConfig(rounds=ROUNDS))
WITH_NORM = {"batch_norm": True}


def yogi_of_the_page(framework):
    """The class that the how-to shows for a framework."""
    texts = [s.text for s in snippets_in(ROOT / "docs/how-to/federated.md") if "Yogi" in s.text]
    (text,) = [text for text in texts if f"({framework.__name__}.opt" in text]
    names = {framework.__name__: framework}
    exec(text, names)
    return names["Yogi"]


def batch_of(number, framework):
    x = np.random.default_rng(number).normal(size=(BATCH, 4)).astype(np.float32)
    return steps.batch_of(framework, {"x": x}, np.sin(x.sum(1, keepdims=True)))


if LATER:

    class Keras(steps.Keras):
        rate = RATE
        adam = staticmethod(lambda model: keras.optimizers.Adam(0.1, 0.9, 0.99, epsilon=1e-3))
        adagrad = staticmethod(
            lambda model: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-3)
        )
        momentum = staticmethod(lambda model: keras.optimizers.SGD(1.0, momentum=0.9))
        yogi = staticmethod(lambda model: yogi_of_the_page(keras)())

    class Torch(steps.Torch):
        rate = RATE
        adam = staticmethod(
            lambda model: torch.optim.Adam(model.parameters(), 0.1, (0.9, 0.99), eps=1e-3)
        )
        adagrad = staticmethod(lambda model: torch.optim.Adagrad(model.parameters(), 0.1, eps=1e-3))
        momentum = staticmethod(
            lambda model: torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)
        )
        yogi = staticmethod(lambda model: yogi_of_the_page(torch)(model.parameters()))


def adam(history, *, corrects_eps):
    """FedAdam with the correction of Adam's bias, after the changes of some rounds."""
    m = v = total = 0.0
    for number, change in enumerate(history, 1):
        m, v = 0.9 * m + 0.1 * change, 0.99 * v + 0.01 * change**2
        first, second = 1 - 0.9**number, 1 - 0.99**number
        root = np.sqrt(v) + 1e-3 if not corrects_eps else np.sqrt(v / second) + 1e-3
        scale = np.sqrt(second) / first if not corrects_eps else 1 / first
        total = total + 0.1 * scale * m / root
    return total


def adagrad(history, *, corrects_eps):
    v = total = 0.0
    for change in history:
        v = v + change**2
        root = np.sqrt(v) + 1e-3 if corrects_eps else np.sqrt(v + 1e-3)
        total = total + 0.1 * change / root
    return total


def momentum(history, *, corrects_eps):
    m = total = 0.0
    for change in history:
        m = 0.9 * m + change
        total = total + m
    return total


def yogi(history, *, corrects_eps):
    m = v = total = 0.0
    for change in history:
        m = 0.9 * m + 0.1 * change
        v = v - 0.01 * change**2 * np.sign(v - change**2)
        total = total + 0.1 * m / (np.sqrt(v) + 1e-3)
    return total


def assign(variables, values):
    for name, value in values.items():
        variables[name].assign(value)


@pytest.mark.long(after=1)
@FRAMEWORKS
@pytest.mark.parametrize("rule", [adam, adagrad, momentum, yogi], ids=lambda rule: rule.__name__)
def test_an_outer_optimizer_is_that_of_the_paper(framework, rule):
    make = getattr(framework, rule.__name__)
    step = framework.make_step(JOB, create_outer_optimizer=make)
    start, outer = trained_values(step), step.outer_optimizer(1.0, 0.0)
    random = np.random.default_rng(3)
    history = {name: [] for name in step.trained}
    for _ in range(5):
        changes = {
            name: random.normal(size=value.shape).astype(np.float32) * 0.2
            for name, value in start.items()
        }
        outer.apply(changes)
        for name, change in changes.items():
            history[name].append(change.astype(np.float64))
        for name, value in trained_values(step).items():
            expected = start[name] + rule(history[name], corrects_eps=framework is Torch)
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@FRAMEWORKS
def test_without_one_the_mean_change_is_added(framework):
    step = framework.make_step(JOB)
    start, outer = trained_values(step), step.outer_optimizer(1.0, 0.0)
    changes = {name: np.full(value.shape, 0.25, np.float32) for name, value in start.items()}
    outer.apply(changes)
    for name, value in trained_values(step).items():
        np.testing.assert_allclose(value, start[name] + 0.25, rtol=1e-6, err_msg=name)


@pytest.mark.long(after=1)
@FRAMEWORKS
def test_fedprox_pulls_each_local_step_towards_the_rounds_begin(framework):
    plain = framework.make_step(JOB)
    rounds = FederatedConfig(rounds=ROUNDS, proximal_mu=MU)
    step = framework.make_step(training(BATCH, federated=rounds))
    # Keras counts the layers of a process.
    plain_variables = {
        name: plain.variables[other]
        for name, other in zip(step.trained, plain.trained, strict=True)
    }

    for first in (0, 3):
        start = trained_values(step)
        step.begin_round()
        for number in range(first, first + 3):
            before = trained_values(step)
            assign(plain_variables, before)
            for trained in (plain, step):
                run(trained, batch_of(number, framework))
            for name, value in trained_values(step).items():
                pull = RATE * MU * (before[name] - start[name])
                expected = plain_variables[name].numpy() - pull
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7, err_msg=name)


class Examples:
    """The local steps of a party in a round, in place of what `RoundBatches` reads."""

    batches = SimpleNamespace(lanes=range(1))

    def __init__(self, number, framework, num_steps):
        self._framework = framework
        self._numbers = range(num_steps * number, num_steps * (number + 1))

    def steps_of(self, lane):
        return (batch_of(number, self._framework) for number in self._numbers)


OPTIMIZERS = {
    "Adam": (KERAS, lambda: keras.optimizers.Adam(0.05)),
    "Nadam": (KERAS, lambda: keras.optimizers.Nadam(0.05)),
    "Adam of PyTorch": (TORCH, lambda model: torch.optim.Adam(model.parameters(), 0.05)),
    "NAdam of PyTorch": (TORCH, lambda model: torch.optim.NAdam(model.parameters(), 0.05)),
    "Rprop of PyTorch": (TORCH, lambda model: torch.optim.Rprop(model.parameters(), 0.05)),
    "Adagrad of PyTorch": (
        TORCH,
        lambda model: torch.optim.Adagrad(model.parameters(), 0.05, initial_accumulator_value=0.1),
    ),
}


def rounds_of(step, job=JOB, collectives=None, names=frozenset()):
    """The rounds of a party, which is alone without collectives."""
    local = local_config(job.federated)
    return LocalRounds(step, collectives, local, "none", Party(job), names)


def run_round(rounds, number, framework, *, num_steps=STEPS, is_alone=True):
    batch = Batch(Examples(number, framework, num_steps), None, num_steps * BATCH)
    return run(rounds, batch, is_alone=is_alone)


@pytest.mark.long(after=1)
@pytest.mark.parametrize(("framework", "optimizer"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_each_round_begins_with_the_state_of_a_new_optimizer(framework, optimizer):
    """Also with its number of steps, by which Adam corrects the bias of its moments."""
    going_on, new = (
        rounds_of(framework.make_step(JOB, create_optimizer=optimizer)) for _ in range(2)
    )
    run_round(going_on, 0, framework)
    pairs = list(zip(going_on.model_variables.values(), new.model_variables.values(), strict=True))
    for old_value, new_value in pairs:
        new_value.assign(np.array(old_value.numpy()))
    run_round(going_on, 1, framework)
    run_round(new, 1, framework)
    for old_value, new_value in pairs:
        np.testing.assert_allclose(old_value.numpy(), new_value.numpy(), rtol=1e-5, atol=1e-6)


if LATER:

    class KeepsWeights(keras.optimizers.SGD):
        """Has slots that begin as copies of the weights, as ScheduleFreeAdamW has."""

        def build(self, variables):
            super().build(variables)
            self.copies = self.add_optimizer_variables(variables, "copy")
            for copy, variable in zip(self.copies, variables, strict=True):
                copy.assign(variable)

    SCHEDULE = keras.optimizers.schedules.ExponentialDecay(RATE, 1, 0.5)


@pytest.mark.parametrize(
    ("create_optimizer", "message"),
    [
        # It needs a number of steps of its own.
        (lambda: keras.optimizers.Adam(SCHEDULE), "Adam .*ExponentialDecay"),
        # Their state has weights.
        (lambda: keras.optimizers.Adam(RATE, use_ema=True), "use_ema"),
        (lambda: KeepsWeights(RATE), "use_ema"),
    ],
    ids=["schedule", "mean", "copy"],
)
def test_an_optimizer_that_cannot_begin_anew_is_refused(create_optimizer, message):
    step = Keras.make_step(JOB, create_optimizer=create_optimizer)
    with pytest.raises(UserCodeError, match=message):
        rounds_of(step)


def test_a_schedule_of_keras_goes_on_over_all_rounds():
    step = Keras.make_step(JOB, create_optimizer=lambda: keras.optimizers.SGD(SCHEDULE))
    rounds = rounds_of(step)
    for number in range(2):
        run_round(rounds, number, Keras)
    assert int(step.optimizer.iterations) == 2 * STEPS


@pytest.mark.long(after=1)
@pytest.mark.parametrize("outer", ["", "adam"])
@FRAMEWORKS
def test_local_variables_stay_at_their_party(framework, outer):
    """FedBN: statistics and weights of the normalisation are the party's own."""
    methods = {"create_outer_optimizer": getattr(framework, outer)} if outer else {}
    ring, parties, local = Ring(2), [], []
    for at, name in enumerate(("a", "b")):
        job = training(BATCH, federated=FederatedConfig(rounds=ROUNDS, party=name))
        step = framework.make_step(job, params=WITH_NORM, **methods)
        names = local_names(["*norm*"], step.model_variables, step.trained)
        assert len(names) >= 4
        party = rounds_of(step, job, ring.of(at), names)
        assert names.isdisjoint(party.variables)
        assert names.isdisjoint(party.trained)
        parties.append(party)
        local.append(sorted(names))
    for party, names in zip(parties, local, strict=True):
        # What one party has when it begins must not matter to the other.
        party.model_variables[names[0]].assign(
            0.5 + np.zeros(party.model_variables[names[0]].shape, "f4")
        )

    def run_party(at, number):
        return run_round(parties[at], 2 * number + at, framework, is_alone=False)

    def values(at, names):
        return [np.array(parties[at].model_variables[name].numpy()) for name in names]

    for number in range(ROUNDS):
        with ThreadPoolExecutor(2) as pool:
            sums = list(pool.map(run_party, range(2), [number] * 2))
        assert [s.num_examples for s in sums] == [2 * STEPS * BATCH] * 2
        shared = [list(party.variables.values()) for party in parties]
        for ours, other in zip(*shared, strict=True):
            np.testing.assert_array_equal(ours.numpy(), other.numpy())
        for ours, other in zip(values(0, local[0]), values(1, local[1]), strict=True):
            if ours.dtype.kind == "f":
                assert not np.array_equal(ours, other)


def train_parties(framework, folder, *, secure_sums):
    """Train parties; returns the sums of their rounds, and the variables of each party."""
    ring, parties = Ring(PARTIES), []
    for at in range(PARTIES):
        (folder / str(at)).mkdir(parents=True)
        config = FederatedConfig(rounds=ROUNDS, party=f"p{at}", secure_sums=secure_sums)
        job = training(BATCH, job_dir=str(folder / str(at)), federated=config)
        # Its variables that no optimizer changes count, too; PyTorch's count batches as well.
        step = framework.make_step(job, params=WITH_NORM)
        parties.append(rounds_of(step, job, ring.of(at)))

    def run_party(at):
        settings = {"num_steps": PARTY_STEPS, "is_alone": False}
        numbers = range(100 * at, 100 * at + ROUNDS)
        return [run_round(parties[at], number, framework, **settings) for number in numbers]

    with ThreadPoolExecutor(PARTIES) as pool:
        sums = list(pool.map(run_party, range(PARTIES)))
    return sums, [list(steps.values_of(party.model_variables).values()) for party in parties]


@pytest.mark.long
@pytest.mark.parametrize("framework", [later("steps.Keras"), later("steps.Torch")])
def test_a_model_trains_by_secure_sums_as_by_plain_ones(framework, tmp_path):
    sums, variables = train_parties(framework, tmp_path / "plain", secure_sums=False)
    secure_sums, secure_variables = train_parties(framework, tmp_path / "secure", secure_sums=True)
    for plain, secure in zip(sums[0], secure_sums[0], strict=True):
        assert secure.num_examples == plain.num_examples == PARTIES * PARTY_STEPS * BATCH
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
