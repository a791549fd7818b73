"""Find the files of a zoo that a model reads: files that its process opens or its code names.

Python reports each file that it opens to audit hooks, imports included. Files that TensorFlow's
and Arrow's own readers open are not reported, nor are files that only a later prediction reads;
these are found by their names in the code.
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

__all__ = ["CODE", "ZooReads", "files_of", "watching_opens"]

_MAX_NAME = 255
CODE = (".py", ".pyc")


@contextlib.contextmanager
def watching_opens(root: Path, on_open: Callable[[str], None]) -> Iterator[None]:
    """Call a function before Python opens a file below a folder for reading, in any thread.

    Args:
        root: The absolute path of the folder.
        on_open: Called with the absolute path of the file. If it raises an exception, so does the
            call that opens the file.
    """
    below = f"{root}{os.sep}"
    is_on = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not is_on:
            return
        path, _, flags = arguments
        if not isinstance(path, str | bytes) or not isinstance(flags, int):
            return  # A file descriptor, which is open already.
        if flags & os.O_ACCMODE != os.O_RDONLY:
            return
        name = os.fsdecode(path)
        if not os.path.isabs(name):
            with contextlib.suppress(OSError):  # The working directory may be gone.
                name = os.path.abspath(name)
        if name.startswith(below):
            on_open(os.path.normpath(name))

    sys.addaudithook(hook)  # Python cannot remove an audit hook.
    try:
        yield
    finally:
        is_on = False


class ZooReads:
    """The files of one zoo that this process reads."""

    def __init__(self, zoo: Path) -> None:
        """Start with no files.

        Args:
            zoo: Absolute path of the zoo.
        """
        self._zoo = zoo
        self._opened: set[str] = set()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the files that are opened inside the block."""
        with watching_opens(import_root(self._zoo), self._opened.add):
            yield

    def files(self) -> list[Path]:
        """Absolute paths of existing files that were opened, or that code which ran names; sorted.

        Of code only modules of the zoo count: other code may lie beside a zoo that is one file.
        """
        modules = loaded_files(self._zoo)
        paths = {Path(name) for name in set(self._opened)}
        for code in modules:
            paths.update(_named_by(code, import_root(self._zoo)))
        data_files = {file for file in paths if file.suffix not in CODE and file.is_file()}
        return sorted({*modules, *data_files})


def files_of(zoo: Path, model_def: str, modules: Sequence[str] = ()) -> list[Path]:
    """The files of a zoo that a model needs, as far as its code shows without running it.

    Args:
        zoo: Absolute path of the zoo.
        model_def: The model.
        modules: Further modules that the job imports; modules outside the zoo are skipped.

    Returns:
        Absolute paths, sorted: the code that may define the model, the modules of the zoo that it
        imports, and the files that all this code names.

    Raises:
        ConfigError: The name is not a valid model_def.
        UserCodeError: The zoo has no such model, or a file that may define it is not Python.
    """
    root = import_root(zoo)
    model_files = {file for group in file_groups(zoo, model_def) for file in group.files}
    module_files = (root.joinpath(*name.split(".")).with_suffix(".py") for name in modules)
    code = imported_files(sorted({*model_files, *filter(Path.is_file, module_files)}), [root])
    return sorted({*code, *(file for code_file in code for file in _named_by(code_file, root))})


def _named_by(code: Path, root: Path) -> Iterator[Path]:
    """The files below a folder that string literals in code name.

    Names may be relative to the code's own folder, or to the root.
    """
    try:
        tree = ast.parse(code.read_bytes())
    except (OSError, SyntaxError, ValueError):  # An extension module, or a file that is gone.
        return
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_name(node.value)
    }
    bases = {code.parent, root}
    folders = {base / text for base in bases for text in texts if (base / text).is_dir()}
    for folder in bases | folders:
        for text in texts:
            path = Path(os.path.normpath(folder / text))
            if path.is_relative_to(root) and path.is_file():
                yield path


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and text.isprintable()
