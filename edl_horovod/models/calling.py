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
    "names_in",
    "user_code",
    "wrong_optimizer",
]

log = logging.getLogger(__name__)

_ABOUT_VALUES = (UserWarning, RuntimeWarning, SyntaxWarning)
"""What PyTorch, NumPy and Keras warn with where values have a shape or a size that is not meant."""
_NAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


_CONVERTED = re.compile(r'File "([^"]+)", line (\d+)')
"""A frame in the text of an error of autograph."""

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
    """How many of the names are of parameters that cannot be given by keyword."""

    def call(self, function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
        """Call the function with the values that it declares, or with all if it has `**kwargs`.

        Args:
            function: The one that declares this.
            available: Values by name.

        Raises:
            UserCodeError: The function requires a parameter that is not available.
        """
        for name in self.required:
            if name not in available:
                raise UserCodeError(
                    f"{_described(function)} requires the parameter {name!r}, which it is not"
                    " given.",
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
    """Inspect which parameters a function declares; none where it is not Python's."""
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


def names_in(function: FunctionType) -> frozenset[str]:
    """The names of attributes and globals that a function's code reads, with the code within it."""

    def names(code: CodeType) -> set[str]:
        inner = (each for each in code.co_consts if isinstance(each, CodeType))
        return {*code.co_names}.union(*map(names, inner))

    return frozenset(names(function.__code__))


def call_declared(function: Callable[..., Any], available: Mapping[str, Any]) -> Any:
    """Call a function once; what is called often keeps what it declares (`Declared.call`)."""
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
    """The boundary to the user's code; a step passes several, so it is no generator."""

    def __init__(self, doing: str | Callable[[], str], root: Path) -> None:
        self._doing, self._root = doing, root

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, EdlError) or not isinstance(error, Exception | SystemExit):
            return
        doing = self._doing if isinstance(self._doing, str) else self._doing()
        place, text = _place(error, self._root), _error_text(error, self._root)
        raise UserCodeError(f"{doing} failed{place}: {text}") from error


@contextlib.contextmanager
def logging_warnings(doing: str) -> Iterator[None]:
    """Log what is warned of while user code is tried, each sentence once.

    What concerns only who writes code, as a deprecation, is left to the training itself.

    Args:
        doing: The start of the message.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [each for each in caught if issubclass(each.category, _ABOUT_VALUES)]
    for text in dict.fromkeys(" ".join(str(each.message).split()) for each in told):
        log.warning("%s: %s", doing, text)


def first_paragraph(error: BaseException) -> str:
    """The beginning of an error's text, on one line: some texts are reports of many pages."""
    return " ".join(str(error).split("\n\n")[0].split())


def wrong_optimizer(returned: object, label: str) -> UserCodeError:
    """The error for what the function `label` returned where an optimizer of Keras 3 must be."""
    return UserCodeError(
        f"{label} must return a Keras 3 optimizer.",
        received=type(returned).__name__,
        hint=f"{OPTIMIZER_HINT}.",
    )


def _described(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", repr(function))
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else str(name)


def _place(error: BaseException, root: Path) -> str:
    converted = [
        file for file in _CONVERTED.findall(str(error)) if Path(file[0]).is_relative_to(root)
    ]
    if converted:
        return f" at {converted[-1][0]}:{converted[-1][1]}"
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
    """What to do where a name was looked for in the zoo's own module of a package's name."""
    package = (error.name or "").partition(".")[0]
    module = sys.modules.get(package)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    own = next((place for place in places if place and Path(place).is_relative_to(root)), None)
    if own is None:
        return ""
    outside = [path for path in sys.path if path and not Path(path).is_relative_to(root)]
    installed = PathFinder.find_spec(package, outside)
    if installed is not None and installed.has_location:
        return f"The model zoo's own {own} hides the installed package {package!r}: rename it"
    return (
        f"{package!r} is the model zoo's own {own}, which lacks that: write it there, or rename it"
        " if a package that is to be installed is meant"
    )
