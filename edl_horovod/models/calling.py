"""Call user code with the parameters that it declares; errors name the line in the user's file."""

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
from edl_horovod.models.hints import OPTIMIZER_HINT, hint_for

__all__ = [
    "Declared",
    "call_declared",
    "declared",
    "first_paragraph",
    "logging_warnings",
    "referenced_names",
    "user_code",
    "wrong_optimizer",
]

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


def wrong_optimizer(returned: object, label: str) -> UserCodeError:
    """The error for a function, called `label` in messages, that returned no Keras 3 optimizer."""
    return UserCodeError(
        f"{label} must return a Keras 3 optimizer.",
        received=type(returned).__name__,
        hint=f"{OPTIMIZER_HINT}.",
    )


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
