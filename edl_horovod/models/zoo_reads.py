"""Which files of a zoo a model reads: those that its process opens, and those that its code names.

Python tells its audit hooks of each file that it opens, imports included. TensorFlow's and Arrow's
own readers are not seen so, nor is what only a prediction will read: these files are found by
their names in the code.
"""

import ast
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edl_horovod.models.lookup import file_groups, import_root
from edl_horovod.models.modules import loaded_files
from edl_horovod.records.code_digest import imported_files

__all__ = ["CODE", "ZooReads", "files_of", "hearing_opens"]

_MAX_NAME = 255
CODE = (".py", ".pyc")


@contextlib.contextmanager
def hearing_opens(root: Path, heard: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the absolute path of each file below a folder, before Python opens it.

    Only for reading, in any thread. What the function raises, the opening raises.
    """
    below = f"{root}{os.sep}"
    is_on = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not is_on:
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes) or not isinstance(flags, int):
            return  # A descriptor that is open already.
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            with contextlib.suppress(OSError):  # The working directory may be gone.
                name = os.path.abspath(name)
        if name.startswith(below):
            heard(os.path.normpath(name))

    sys.addaudithook(hook)  # For ever: Python has no way to remove one.
    try:
        yield
    finally:
        is_on = False


class ZooReads:
    """What a process reads of one zoo."""

    def __init__(self, zoo: Path) -> None:
        """Record nothing yet.

        Args:
            zoo: Absolute path of the zoo.
        """
        self._zoo = zoo
        self._opened: set[str] = set()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Note what is opened meanwhile."""
        with hearing_opens(import_root(self._zoo), self._opened.add):
            yield

    def files(self) -> list[Path]:
        """Absolute paths of the files that are there, sorted: opened, or named by code that ran.

        Code itself counts where it was imported as the zoo's: other code may lie around a zoo that
        is one file.
        """
        modules = loaded_files(self._zoo)
        found = {Path(name) for name in set(self._opened)}
        for code in modules:
            found.update(_named_by(code, import_root(self._zoo)))
        others = {file for file in found if file.suffix not in CODE and file.is_file()}
        return sorted({*modules, *others})


def files_of(zoo: Path, model_def: str, modules: Sequence[str] = ()) -> list[Path]:
    """The files of a zoo that a model is made of, as far as code tells that does not run.

    Args:
        zoo: Absolute path of the zoo.
        model_def: The model.
        modules: Further modules that its job imports; those that do not lie in the zoo are left
            out.

    Returns:
        Absolute paths, sorted: the code that may define the model, what it imports of the zoo, and
        the files that are named in all this.

    Raises:
        ConfigError: The name is none that a model can have.
        UserCodeError: The zoo has no such model, or a file that may define it is not Python.
    """
    root = import_root(zoo)
    first = {file for group in file_groups(zoo, model_def) for file in group.files}
    own = (root.joinpath(*name.split(".")).with_suffix(".py") for name in modules)
    code = imported_files(sorted({*first, *filter(Path.is_file, own)}), [root])
    return sorted({*code, *(file for each in code for file in _named_by(each, root))})


def _named_by(code: Path, root: Path) -> Iterator[Path]:
    """The files below a folder that the texts in some code name, beside it or from the folder."""
    try:
        tree = ast.parse(code.read_bytes())
    except (OSError, SyntaxError, ValueError):  # An extension module, or gone meanwhile.
        return
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_name(node.value)
    }
    places = {code.parent, root}
    folders = {place / text for place in places for text in texts if (place / text).is_dir()}
    for folder in places | folders:
        for text in texts:
            path = Path(os.path.normpath(folder / text))
            if path.is_relative_to(root) and path.is_file():
                yield path


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and text.isprintable()
