"""A framework in NumPy, for linear models: all that the ring needs of one, and nothing else."""

import numpy as np

from edl_horovod.config.frameworks import FrameworkEntry
from edl_horovod.frameworks.values import Array, Batch, EvaluationSums, Output, StepSums
from edl_horovod.records.steps import NO_IDS, StepRecords

ENTRY = FrameworkEntry(module="tests.numpy_framework", packages=("numpy",), extra="")


class Batches:
    element_spec = None
    record_ids = NO_IDS

    def __init__(self, source, plan, loaded, mode):
        self._records, self._spec, self._mode = StepRecords(source, plan), loaded.spec, mode

    def restart(self, lanes, first_step, last_step, spans=None):
        self._records.restart(lanes, first_step, last_step, spans)
        self._step, self._number = first_step, 0

    def expect(self, lanes, first_step, last_step, spans=None):
        pass

    def close(self):
        pass

    def try_first(self):
        self.restart(range(1), 0, 1)
        return self.next_batch()

    def next_batch(self):
        step, self._step, self.record_ids = self._step, self._step + 1, NO_IDS
        if step not in self._records:
            return None
        _, records = self._records.read(self._records.run_number, self._number)
        self._number += 1
        self.record_ids = self._records.take_ids(step)
        features, labels = self._spec.create_dataset(records, self._mode)
        return Batch(features, labels, len(features)) if len(features) else None


class Model:
    def __init__(self, loaded):
        self.kernel = Array(loaded.spec.create_model())
        self.weights = {"kernel": self.kernel}
        self.names, self.zeros = ["loss"], EvaluationSums.zeros(0)

    def evaluation(self, element_spec):
        return self

    def prediction(self, element_spec):
        return self

    def sums(self, batch):
        errors = self.outputs(batch.features) - batch.labels
        return EvaluationSums(len(errors), np.sum(errors**2), len(errors), np.zeros(0))

    def values(self, sums):
        return {"loss": sums.loss / sums.num_examples}

    def describe(self):
        return (Output(name="output", dtype="float64", batch_shape=(None, 1)),)

    def outputs(self, features):
        return features @ self.kernel.numpy()

    def arrays(self, outputs):
        return {"output": outputs}

    def save(self, folder):
        np.save(folder / "kernel.npy", self.kernel.numpy())


class Step:
    def __init__(self, loaded, collectives):
        self.model, self._collectives = Model(loaded), collectives
        self.variables = self.model_variables = self.model.weights
        self.groups = ()
        self._rate, self._scale = loaded.spec.create_optimizer(), 1.0

    def step(self, batch, *, wants_change, is_alone, salt):
        kernel = self.model.kernel.numpy()
        sums = np.append(np.zeros(kernel.size + 2), wants_change)
        if batch is not None:
            errors = batch.features @ kernel - batch.labels
            gradient = 2 * batch.features.T @ errors
            sums[:-1] = [*gradient.ravel(), np.sum(errors**2), len(errors)]
        if not is_alone:
            sums = self._collectives.sum(sums, "numpy.step")
        *gradient, loss, count, wants_change = sums
        if count and np.isfinite(loss):
            rate = self._scale * self._rate
            self.model.kernel.assign(kernel - rate / count * np.reshape(gradient, (-1, 1)))
        mean = loss / count if count else float("nan")
        return StepSums(int(count), mean, wants_change > 0, {})

    def scale_learning_rate(self, factor):
        self._scale = factor

    def finalize(self):
        pass

    def rehearse(self, batch):
        pass

    def is_waiting(self):
        return False

    def callbacks(self, *, num_epochs, steps_per_epoch, per_step):
        return None


class Framework:
    name, horovod, plain_models = "numpy", None, None

    def __init__(self, collectives=None):
        self.collectives = collectives

    def begin(self, *, slot, seed):
        np.random.seed(seed)
        return 0

    def use_precision(self, precision):
        pass

    def batches(self, source, plan, loaded, mode, *, prefetch, processes=0):
        return Batches(source, plan, loaded, mode)

    def examples(self, source, plan, loaded):
        raise NotImplementedError

    def model(self, loaded, element_spec):
        return Model(loaded)

    def step(self, loaded, element_spec, config, *, scales_learning_rate=False):
        return Step(loaded, self.collectives)


FRAMEWORK = Framework()
