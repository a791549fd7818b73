"""A framework in NumPy, for linear models: it does all that Keras and PyTorch do.

What is not about arrays comes from `edl_horovod.frameworks`. The loss is the mean squared error;
an optimizer is a learning rate, or a learning rate and a momentum.
"""

import contextlib
import time

import ml_dtypes
import numpy as np

from edl_horovod.config.frameworks import FrameworkEntry
from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks import plain_models as parts
from edl_horovod.frameworks.batches import MAX_PARTS, StepBatches, wrong_parts
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.packing import NAME
from edl_horovod.frameworks.step_options import StepOptions
from edl_horovod.frameworks.values import (
    CONTRIBUTORS,
    EXAMPLES,
    LOSS,
    LOSS_WEIGHT,
    METRICS,
    WANTS_CHANGE,
    Array,
    Batch,
    EvaluationSums,
    Output,
    StepSums,
    state_groups,
)
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.parts import PlainModels
from edl_horovod.spec import Mode

ENTRY = FrameworkEntry(
    module="tests.numpy_framework",
    packages=("numpy",),
    extra="",
    unsupported={"train.compile": "is for framework=torch"},
)
SHORT = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


class Batches(StepBatches):
    def __init__(self, source, plan, loaded, mode):
        super().__init__(source, plan)
        self._loaded, self._mode = loaded, mode
        self._samples = None
        self._number = 0

    @property
    def element_spec(self):
        """Some examples: the model's metrics are found out from them."""
        self._samples = self._samples or next(self.epoch())
        return self._samples

    def try_first(self):
        self.restart(range(1), 0, 1, self._plan.spans(1))
        self._samples = self.next_batch()
        return self._samples

    def close(self):
        pass

    def _restart(self, lanes, first_step, last_step, spans):
        super()._restart(lanes, first_step, last_step, spans)
        self._number = 0

    def _take(self, step):
        _, records = self._records.read(self._records.run_number, self._number)
        self._number += 1
        name = f"create_dataset of {self._loaded.label}"
        with user_code(name, root=self._loaded.zoo):
            returned = self._loaded.spec.create_dataset(records, self._mode)
        if not isinstance(returned, tuple) or not 2 <= len(returned) <= MAX_PARTS:
            hint = "Return arrays of all examples of the step."
            raise wrong_parts(name, self._mode, received=type(returned).__name__, hint=hint)
        features, labels, weights = (*returned, None)[:MAX_PARTS]
        return Batch(features, labels, len(features), weights) if len(features) else None


class Model:
    def __init__(self, loaded):
        self.loaded = loaded
        with user_code(f"create_model of {loaded.label}", root=loaded.zoo):
            self.kernel = Array(call_declared(loaded.spec.create_model, {}))
        self.weights = {"kernel": self.kernel}

    def evaluation(self, samples):
        return Evaluation(self, samples, Mode.EVALUATION)

    def prediction(self, samples):
        return self

    def describe(self):
        shape = (None, *self.kernel.shape[1:])
        return (Output(name="output", dtype=self.kernel.dtype.name, batch_shape=shape),)

    def outputs(self, features):
        return features @ self.kernel.numpy()

    def arrays(self, outputs):
        return {"output": outputs}

    def load(self, file, *, is_trusted):
        kernel = np.load(file, allow_pickle=is_trusted)
        if kernel.shape != self.kernel.shape:
            raise UserCodeError(f"{file} does not fit the model.", received={"shape": kernel.shape})
        self.kernel.assign(kernel)

    def save(self, folder):
        np.save(folder / "kernel.npy", self.kernel.numpy())

    def export(self, folder, *, saved_model, onnx):
        if saved_model:
            np.savez(folder / "saved_model.npz", kernel=self.kernel.numpy())
        if onnx:
            with user_code("Exporting the model to ONNX (train.onnx=true)", root=folder):
                self._write_onnx(folder / "model.onnx")

    def _write_onnx(self, path):
        import onnx
        from onnx import helper, numpy_helper

        kernel = self.kernel.numpy()
        constant = numpy_helper.from_array(kernel, "kernel")
        inputs, outputs = (
            [helper.make_tensor_value_info(name, constant.data_type, [None, size])]
            for name, size in zip(("features", "output"), kernel.shape, strict=True)
        )
        node = helper.make_node("MatMul", ["features", "kernel"], ["output"])
        graph = helper.make_graph([node], "linear", inputs, outputs, [constant])
        onnx.save(helper.make_model(graph), path)


class Evaluation:
    """Loss and metrics; the gradient of the loss, too."""

    def __init__(self, model, samples, mode, class_weight=()):
        self._model, self._mode, self._class_weight = model, mode, np.array(class_weight)
        self.metric_names = sorted(self._metrics(samples, model.outputs(samples.features)))
        self.names = ["loss", *self.metric_names]
        self.zeros = EvaluationSums.zeros(len(self.metric_names))

    def sums(self, batch):
        row, _ = self.row_and_gradient(batch)
        return EvaluationSums(row[EXAMPLES], row[LOSS], row[LOSS_WEIGHT], row[METRICS:])

    def values(self, sums):
        return {"loss": sums.mean_loss, **self.metric_values(sums.metrics, sums.num_examples)}

    def metric_values(self, sums, count):
        return {name: float(sums[i] / count) for i, name in enumerate(self.metric_names) if count}

    def row_and_gradient(self, batch):
        """The numbers of a step without the flag of a change, and the gradient of their loss."""
        outputs = self._model.outputs(batch.features)
        errors, weights = outputs - batch.labels, batch.weights
        if self._class_weight.size:
            weights = self._class_weight[batch.labels.astype(int)]
        weights = np.ones(len(errors)) if weights is None else np.ravel(weights)
        row = np.zeros(METRICS + len(self.metric_names))
        row[[EXAMPLES, CONTRIBUTORS]] = len(errors), 1
        row[[LOSS, LOSS_WEIGHT]] = np.sum(weights @ errors**2), weights.sum()
        metrics = self._metrics(batch, outputs)
        row[METRICS:] = [len(errors) * np.mean(metrics[name]) for name in self.metric_names]
        return row, 2 * batch.features.T @ (weights[:, np.newaxis] * errors)

    def _metrics(self, batch, outputs):
        loaded = self._model.loaded
        values = {"mode": self._mode, "outputs": outputs, "labels": batch.labels}
        with user_code(f"create_metrics of {loaded.label}", root=loaded.zoo):
            return call_declared(loaded.spec.create_metrics, values)


class Callbacks(EpochCallbacks):
    """Callbacks whose model is a `Model`, and whose optimizer is a `Step`."""

    def __init__(self, callbacks, step, *, per_step, **common):
        super().__init__(callbacks, **common)
        self._step = step
        self._step_callbacks = list(self._callbacks) if per_step else []

    def _attach(self, callback, *, is_first):
        callback.model, callback.optimizer = self._step.model, self._step

    def _set_learning_rate(self, rate):
        self._step.rate.assign(rate)

    def _wants_stop(self):
        return any(callback.stop_training for callback in self._callbacks)

    def _call_read_only(self, hook, *arguments):
        before = [variable.numpy() for variable in self._step.variables.values()]
        self._call(hook, *arguments)
        after = [variable.numpy() for variable in self._step.variables.values()]
        if any(new is not old for new, old in zip(after, before, strict=True)):
            raise UserCodeError(f"{hook} changes the model, which only on_epoch_end may do.")

    def _attributes(self, callback):
        return vars(callback)


class Step:
    def __init__(self, loaded, samples, config, collectives):
        self._loaded, self._collectives = loaded, collectives
        self._options = StepOptions.of(config)
        self.model = Model(loaded)
        self._objective = Evaluation(self.model, samples, Mode.TRAINING, self._options.class_weight)
        rate, self._momentum = (*np.ravel(loaded.optimizer(config.train.learning_rate)), 0.0)[:2]
        self.rate, self._factor = Array(rate), 1.0
        self._velocity = Array(np.zeros(self.model.kernel.shape))
        self._computed_at = None
        self._anchor = 0.0
        self.model_variables = self.model.weights
        self.trained, self.slots = list(self.model.weights), ["optimizer/velocity"]
        self.variables = {
            **self.model_variables,
            "optimizer/velocity": self._velocity,
            "optimizer/rate": self.rate,
        }
        self.groups = state_groups(self.variables, [(["kernel", "optimizer/velocity"], True)], [])

    def step(self, batch, *, wants_change, is_alone, salt):
        self._computed_at = None
        row, gradient = self._sums_of(batch)
        row[WANTS_CHANGE] = wants_change
        if not is_alone:
            self._computed_at = time.monotonic()
            row, gradient = self._over_ring(row, gradient)
        weight, is_finite = row[LOSS_WEIGHT], bool(np.isfinite(gradient).all())
        loss = float(row[LOSS] / weight) if weight else float("nan")
        if np.isfinite(loss) and is_finite:
            pull = self._options.proximal_mu * (self.model.kernel.numpy() - self._anchor)
            self._update(self._clipped(gradient / weight + pull))
        return StepSums.of(
            row,
            loss=loss,
            metrics=self._objective.metric_values(row[METRICS:], row[EXAMPLES]),
            metric_sums=row[METRICS:],
            has_finite_gradients=is_finite,
        )

    def optimizer_state(self):
        return self.slots

    def begin_round(self):
        self._anchor = np.array(self.model.kernel.numpy())

    def scale_learning_rate(self, factor):
        self._factor = factor

    def outer_optimizer(self, learning_rate, momentum):
        return OuterOptimizer(self.model.kernel, learning_rate, momentum)

    def finalize(self):
        pass

    def rehearse(self, batch):
        self._sums_of(batch)

    def is_waiting(self):
        return self._computed_at is not None

    def waited_seconds(self):
        return 0.0 if self._computed_at is None else time.monotonic() - self._computed_at

    def callbacks(self, *, num_epochs, steps_per_epoch, per_step):
        callbacks = self._loaded.callbacks()
        if not callbacks:
            return None
        return Callbacks(
            callbacks,
            self,
            per_step=per_step,
            num_metric_sums=len(self._objective.metric_names),
            metric_values=self._objective.metric_values,
            trainable=Array(np.ones(1)),
            settle=lambda: None,
            zoo=self._loaded.zoo,
        )

    def _sums_of(self, batch):
        """Add up a batch's numbers and gradients, part by part; zeros without examples."""
        row = np.zeros(METRICS + len(self._objective.metric_names))
        gradient, count = np.zeros(self.model.kernel.shape), batch.num_examples if batch else 0
        size = -(-count // self._options.num_parts) or 1
        for first in range(0, count, size):
            features, labels, weights = (
                None if part is None else part[first : first + size]
                for part in (batch.features, batch.labels, batch.weights)
            )
            part_row, part_gradient = self._objective.row_and_gradient(
                Batch(features, labels, len(features), weights)
            )
            row, gradient = row + part_row, gradient + part_gradient
        row[CONTRIBUTORS] = bool(count)
        return row, gradient

    def _over_ring(self, row, gradient):
        """Add up the ranks' numbers and gradients; all ranks get the same bits."""
        compression = self._options.reduction.compression
        if compression == "none":
            total = self._collectives.sum(np.append(row, gradient), NAME)
            return total[: row.size], total[row.size :].reshape(gradient.shape)
        # Each number is sent with 16 bits, four of them in an integer, and added with 64.
        short = SHORT[compression]
        scale = self._options.reduction.batch_size if compression == "fp16" else 1
        sent = np.zeros(-(-gradient.size // 4) * 4, short)
        sent[: gradient.size] = np.ravel(gradient / scale)
        name = f"{NAME}.{compression}"
        received = self._collectives.gather_rows(sent.view(np.int64).tolist(), name).view(short)
        total = scale * received[:, : gradient.size].astype(float).sum(0)
        return self._collectives.sum(row, NAME), total.reshape(gradient.shape)

    def _clipped(self, gradient):
        if limit := self._options.clip_value:
            gradient = np.clip(gradient, -limit, limit)
        if limit := self._options.clip_norm:
            gradient = gradient * min(1.0, limit / (np.linalg.norm(gradient) or 1.0))
        return gradient

    def _update(self, gradient):
        change = self._factor * self.rate.numpy() * gradient
        self._velocity.assign(self._momentum * self._velocity.numpy() - change)
        self.model.kernel.assign(self.model.kernel.numpy() + self._velocity.numpy())


class OuterOptimizer:
    """SGD with Nesterov momentum."""

    def __init__(self, kernel, rate, momentum):
        self._kernel, self._rate, self._momentum = kernel, rate, momentum
        self._velocity = Array(np.zeros(kernel.shape))
        self.variables = {"velocity": self._velocity}

    def apply(self, changes):
        if not changes:  # The kernel stays at its party.
            return
        self._velocity.assign(self._momentum * self._velocity.numpy() + changes["kernel"])
        ahead = changes["kernel"] + self._momentum * self._velocity.numpy()
        self._kernel.assign(self._kernel.numpy() + self._rate * ahead)


def _model_part(maker, *, label):
    return parts.model_part(maker, parts.named_parameters(maker), label=label)


def _same(function, *, label):
    return function


class Framework:
    name, horovod = "numpy", None
    plain_models = PlainModels(
        "numpy",
        np.ndarray,
        make={
            "model": _model_part,
            "input_fn": parts.dataset_part,
            **dict.fromkeys(("loss", "optimizer", "metrics", "callbacks"), _same),
        },
        hints=dict.fromkeys(("input_fn", "loss", "optimizer"), "its file a function"),
    )

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
        batches = Batches(source, plan, loaded, Mode.TRAINING)
        return contextlib.nullcontext([batch.examples for batch in batches.epoch()])

    def model(self, loaded, element_spec):
        return Model(loaded)

    def step(self, loaded, element_spec, config, *, scales_learning_rate=False):
        return Step(loaded, element_spec, config, self.collectives)


FRAMEWORK = Framework()
