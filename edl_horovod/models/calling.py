"""Call user code with the parameters that it declares; errors name the line in the user's file.

They hold hints for files that were written for TensorFlow 1, Keras 2 or NumPy. An error of
TensorFlow or Keras is recognised by its text, as the installed versions write it;
`tests/component/models/test_old_model_files.py` raises these errors for real.
"""

import contextlib
import inspect
import itertools
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from edl_horovod.errors import EdlError, UserCodeError, did_you_mean

log = logging.getLogger(__name__)

_ABOUT_VALUES = (UserWarning, RuntimeWarning, SyntaxWarning)
"""The warnings of PyTorch, NumPy and Keras about values of a shape or size that looks wrong."""
_NAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


_CONVERTED = re.compile(r'File "([^"]+)", line (\d+)')
"""A stack frame in the text of an error that TensorFlow's AutoGraph raised."""

_IN_CALL = re.compile(r"^Exception encountered when calling .*?\x1b\[1m(.*?)\x1b\[0m", re.DOTALL)
"""The message of an exception in the `call` of a layer, inside the text that Keras adds."""

_GRAPH_NODE = re.compile(r"\s*\[\[\{\{node .*", re.DOTALL)
OPTIMIZER_HINT = "tf.train's optimizers are gone: use one of Keras 3, such as keras.optimizers.SGD"
_TENSORFLOW_1_HINTS = {
    "ConfigProto": "Leave it out: the job sets up the devices",
    "Session": "Leave it out: the job runs the steps",
    "app": "Leave it out: parameters come as params.NAME=VALUE",
    "compat": "Write it for TensorFlow 2",
    "contrib": "tf.contrib is gone; Keras has most of it in keras.layers",
    "enable_eager_execution": "Leave it out: TensorFlow 2 is eager",
    "estimator": "Estimators are gone: write a Keras model",
    "flags": "Leave it out: parameters come as params.NAME=VALUE",
    "get_variable": "Call add_weight in a layer of yours",
    "global_variables_initializer": "Leave it out: Keras initialises its variables",
    "layers": "Write keras.layers",
    "log": "Write tf.math.log",
    "losses": "Write keras.losses, or a function of tf.nn",
    "metrics": "Write keras.metrics",
    "placeholder": "Write keras.Input",
    "random_normal": "Write tf.random.normal",
    "random_uniform": "Write tf.random.uniform",
    "reset_default_graph": "Leave it out: there is no default graph",
    "set_random_seed": "Leave it out: set data_plan.seed",
    "to_float": "Write tf.cast(x, tf.float32)",
    "to_int32": "Write tf.cast(x, tf.int32)",
    "truncated_normal": "Write tf.random.truncated_normal",
    "variable_scope": "Leave it out: Keras names its variables",
}
_TENSOR_EXPRESSIONS = {
    "argmax": "tf.argmax(x, axis)",
    "astype": "tf.cast(x, dtype)",
    "flatten": "tf.reshape(x, [-1])",
    "max": "tf.reduce_max(x)",
    "mean": "tf.reduce_mean(x)",
    "min": "tf.reduce_min(x)",
    "ravel": "tf.reshape(x, [-1])",
    "reshape": "tf.reshape(x, shape)",
    "sum": "tf.reduce_sum(x)",
    "T": "tf.transpose(x)",
    "transpose": "tf.transpose(x)",
}
_MODEL_HINTS = {
    "_set_inputs": "Leave it out: the job runs the model once on the first features",
    "fit_generator": "Leave it out: the job trains the model",
    "predict_classes": "Write tf.argmax(model(x), -1)",
    "uses_learning_phase": "Leave it out: a layer's call is handed `training`",
}


@dataclass(frozen=True)
class Declared:
    """The parameters of a function."""

    names: tuple[str, ...]
    """The named parameters in order, without `self` if the function is bound."""
    required: tuple[str, ...]
    """The named parameters without a default."""
    takes_any: bool
    """Whether it has `**kwargs`."""
    num_positional: int = 0
    """The number of positional-only parameters, which come first in `names`."""

    def call(self, function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
        """Call the function with the values that it declares, or with all if it has `**kwargs`.

        Args:
            function: The function whose parameters these are.
            available: Values by parameter name.

        Raises:
            UserCodeError: The function requires a parameter that is not available.
        """
        for name in self.required:
            if name not in available:
                raise UserCodeError(
                    f"{_name_and_place(function)} requires the parameter {name!r}, which is not"
                    " passed to it.",
                    received=", ".join(sorted(available)) or "nothing",
                    hint=f"{did_you_mean(name, available)} Rename it or give it a default.",
                )
        first, others = self.names[: self.num_positional], self.names[self.num_positional :]
        positional = [
            available[name] for name in itertools.takewhile(available.__contains__, first)
        ]
        if self.takes_any:
            named = {name: value for name, value in available.items() if name not in first}
        else:
            named = {name: available[name] for name in others if name in available}
        return function(*positional, **named)


def declared(function: Callable[..., Any]) -> Declared:
    """The parameters that a function declares; none for a built-in without a signature."""
    parameters: Iterable[inspect.Parameter] = ()
    with contextlib.suppress(ValueError):
        parameters = inspect.signature(function).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    return Declared(
        names=tuple(parameter.name for parameter in named),
        required=tuple(p.name for p in named if p.default is inspect.Parameter.empty),
        takes_any=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        num_positional=sum(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in named),
    )


def referenced_names(function: FunctionType) -> frozenset[str]:
    """The attributes and globals that a function reads, including those of nested functions."""

    def names(code: CodeType) -> set[str]:
        inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
        return {*code.co_names}.union(*map(names, inner))

    return frozenset(names(function.__code__))


def call_declared(function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
    """Call a function once; a caller in a loop keeps the result of `declared` instead."""
    return declared(function).call(function, available)


def user_code(doing: str | Callable[[], str], *, root: Path) -> AbstractContextManager[None]:
    """Turn what user code raises into a `UserCodeError` that names the line in the user's files.

    Args:
        doing: The start of the message, for instance `Loading mnist.py`; or what makes it, where
            that would cost time in each step.
        root: The folder of the user's files.

    Raises:
        UserCodeError: With the original exception as its cause.
    """
    return _UserCode(doing, root)


class _UserCode(AbstractContextManager[None]):
    """The context manager of `user_code`: a class, because generators are slow in each step."""

    def __init__(self, doing: str | Callable[[], str], root: Path) -> None:
        self._doing, self._root = doing, root

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, EdlError) or not isinstance(error, Exception | SystemExit):
            return
        doing = self._doing if isinstance(self._doing, str) else self._doing()
        position, text = _position(error, self._root), _error_text(error, self._root)
        raise UserCodeError(f"{doing} failed{position}: {text}") from error


@contextlib.contextmanager
def logging_warnings(doing: str) -> Iterator[None]:
    """Log the warnings that user code raises in a trial run, each sentence once.

    Deprecations and other warnings for developers are left out; the training itself shows them.

    Args:
        doing: The start of the message.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    relevant = [entry for entry in caught if issubclass(entry.category, _ABOUT_VALUES)]
    for text in dict.fromkeys(" ".join(str(entry.message).split()) for entry in relevant):
        log.warning("%s: %s", doing, text)


def first_paragraph(error: BaseException) -> str:
    """The beginning of an error's text, on one line: some texts are reports of many pages."""
    return " ".join(str(error).split("\n\n")[0].split())


def _name_and_place(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else str(name)


def _position(error: BaseException, root: Path) -> str:
    converted_frames = [
        file for file in _CONVERTED.findall(str(error)) if Path(file[0]).is_relative_to(root)
    ]
    if converted_frames:
        return f" at {converted_frames[-1][0]}:{converted_frames[-1][1]}"
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
    return f" at {inside[-1].filename}:{inside[-1].lineno}" if inside else ""


def _error_text(error: BaseException, root: Path) -> str:
    # The text of a KeyError is the repr of its key, in which Keras' marks are escaped.
    in_call = _IN_CALL.search(
        str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    )
    text = f"{type(error).__name__}: {in_call[1] if in_call else error}"
    if "Graph execution error" in text:  # A dump of the graph with the error at its end.
        text = f"{type(error).__name__}: {_GRAPH_NODE.sub('', text).rstrip().splitlines()[-1]}"
    if "in user code:" in text:  # Frames of autograph with the error as the last paragraph.
        text = text.rstrip().rpartition("\n\n")[2].strip()
    if isinstance(error, ImportError) and (hidden := _hidden_package(error, root)):
        text += f". {hidden}"
    elif isinstance(error, ModuleNotFoundError):
        text += ". Install it, and name it in the model zoo's requirements.txt"
    if "tf.function only supports singleton tf.Variables" in text:
        text = "It makes variables at each call. Make Keras metrics and layers once, in __init__"
    hint = hint_for(text)
    return f"{text.rstrip('. ')}. {hint}" if hint else text


def _hidden_package(error: ImportError, root: Path) -> str:
    """A sentence if a module of the zoo hides the installed package that was imported; else ""."""
    package = (error.name or "").partition(".")[0]
    module = sys.modules.get(package)
    module_paths = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    zoo_module = next(
        (path for path in module_paths if path and Path(path).is_relative_to(root)), None
    )
    if zoo_module is None:
        return ""
    outside = [path for path in sys.path if path and not Path(path).is_relative_to(root)]
    installed = PathFinder.find_spec(package, outside)
    if installed is not None and installed.has_location:
        return (
            f"The model zoo's own {zoo_module} hides the installed package {package!r}: rename it"
        )
    return (
        f"{package!r} is the model zoo's own {zoo_module}, which does not define that name: define"
        " it, or rename the file if an installable package is meant"
    )


def _tensorflow_hint(match: re.Match[str]) -> str:
    if match[1] == "train" and match[2].endswith("Optimizer"):
        return OPTIMIZER_HINT
    if match[1]:
        return ""
    return _TENSORFLOW_1_HINTS.get(match[2], "")


def _tensor_hint(match: re.Match[str]) -> str:
    name = match[1]
    if name == "numpy":
        return (
            "A step is traced once, before there are values: leave out .numpy() and write it with"
            " functions of TensorFlow"
        )
    instead = _TENSOR_EXPRESSIONS.get(name)
    return f"A tensor is not a NumPy array: write {instead}" if instead else ""


_HINTS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"module 'tensorflow(?:\._api\.v2\.|\.)?(\w*)' has no attribute '(\w+)'", _tensorflow_hint),
    (r"'?\w*Tensor'? object has no attribute '(\w+)'", _tensor_hint),
    (r"'\w+' object has no attribute '(\w+)'", lambda match: _MODEL_HINTS.get(match[1], "")),
    (r"Argument\(s\) not recognized: \{'lr'", "Write learning_rate instead of lr"),
    (
        r"Argument `decay` is no longer supported",
        "Write a schedule as learning_rate, such as keras.optimizers.schedules.InverseTimeDecay",
    ),
    (
        r"Unrecognized keyword arguments? passed to \w+: \{'batch_input_shape'",
        "Put keras.Input(batch_shape=...) before the layer",
    ),
    (
        r"has type (\w+) that does not match type (\w+) of argument",
        r"Give both one type: tf.cast(labels, tf.\2), or output_type=tf.\1 to tf.argmax",
    ),
    (
        r"Missing data for input|does not match the (?:expected )?structure",
        "Call the model's inputs as the features are called: keras.Input(..., name='image')",
    ),
    # A layer looks up the size of its last axis in the shapes of a dict.
    (
        r"^KeyError: -1$",
        "If a layer was handed the features' dict: take them by name (x['image']), or make the"
        " model of keras.Input(name=...) of these names",
    ),
)
"""Patterns in the text of an error, each with its hint, in which \\1 is the first group."""


def hint_for(text: str) -> str:
    """What to do about an error with this text; empty for an error that is not known."""
    for pattern, hint in _HINTS:
        if match := re.search(pattern, text):
            sentence = match.expand(hint) if isinstance(hint, str) else hint(match)
            if sentence:
                return sentence
    return ""
