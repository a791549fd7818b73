"""The files of a model zoo that belong to a trained model: sources, and files that the model reads.

Python reports each file that it opens to audit hooks, imports included. Files that TensorFlow's
and Arrow's own readers open are not reported, nor are files that only a later prediction reads;
these are found by their names in the code.
"""

import ast
import contextlib
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from edl_horovod.errors import ConfigError, DataError, OutputError
from edl_horovod.files import marker
from edl_horovod.models.lookup import file_groups, import_root
from edl_horovod.models.modules import loaded_files

_NOT_A_ZOO = ("pyvenv.cfg", marker.NAME)
"""A folder with one of these files is a virtual environment, or a job, a trained model, etc."""
_SUFFIXES = frozenset({".py", ".txt", ".yaml", ".json", ".md"})
_MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 50 << 20
MAX_READ_BYTES = 256 << 20
"""Most bytes of the files that a trained model carries because the model reads them."""

log = logging.getLogger(__name__)

_MAX_NAME = 255
CODE_SUFFIXES = (".py", ".pyc")


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
            paths.update(_files_named_in(code, import_root(self._zoo)))
        data_files = {file for file in paths if file.suffix not in CODE_SUFFIXES and file.is_file()}
        return sorted({*modules, *data_files})


def walk(zoo: Path) -> Iterator[Path]:
    """The files of a folder that may belong to the zoo, without hidden and compiled ones."""
    for folder, folders, names in os.walk(zoo):
        if folder != str(zoo) and any(name in names for name in _NOT_A_ZOO):
            folders.clear()
            continue
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def require_inside(zoo: Path, files: Iterable[Path]) -> None:
    """Refuse links out of a zoo: copying them would copy other files of this machine.

    Raises:
        ConfigError: A path is not a file, or is a link to a file elsewhere.
    """
    root = zoo.resolve()
    for name in files:
        file = root / name
        if not file.resolve().is_relative_to(root) or not file.is_file():
            raise ConfigError(
                f"The model zoo holds {name.as_posix()!r}, which is not a file in the zoo. A link"
                " that leads out of the zoo would copy another file of this machine with it.",
                received={"model_zoo": zoo},
                hint="Remove it, or put the file itself into the zoo.",
            )


def sources(zoo: Path) -> list[Path]:
    """The files of a zoo that are copied into a trained model: sorted, relative paths.

    These are sources and small texts (`.py`, `.txt`, `.yaml`, `.json`, `.md` up to 1 MiB) that are
    not hidden. A zoo that is one file has that file alone.

    Raises:
        ConfigError: A file is a link that leads out of the zoo.
        OutputError: Together they are larger than 50 MiB.
    """
    root = import_root(zoo)
    candidates = [zoo] if zoo.is_file() else [file for file in walk(zoo) if _is_source(file)]
    files = sorted(file.relative_to(root) for file in candidates)
    require_inside(root, files)
    num_bytes = sum(root.joinpath(file).stat().st_size for file in files)
    if num_bytes > MAX_TOTAL_BYTES:
        raise OutputError(
            f"The sources and texts of the model zoo take {num_bytes} bytes; a trained model may"
            f" carry {MAX_TOTAL_BYTES}.",
            received={"model_zoo": zoo, "files": len(files)},
            hint="Keep data and environments out of the model zoo, or give a narrower folder.",
        )
    return files


def with_reads(zoo: Path, reads: Iterable[Path]) -> list[Path]:
    """The files that are copied into a trained model: `sources`, and files that the model reads.

    Args:
        zoo: Folder of model files, or one file.
        reads: Absolute paths of the files that the model reads (`ZooReads`). Hidden files, files
            outside the zoo, and files of environments, jobs and trained models are skipped.

    Returns:
        Sorted paths, relative to the zoo, or to the folder of a zoo that is one file.

    Raises:
        ConfigError: A source is a link that leads out of the zoo.
        OutputError: The files that the model reads are larger than 256 MiB, or the sources than 50.
    """
    root = import_root(zoo)
    source_files = sources(zoo)
    read_files = {path.relative_to(root) for path in reads if path.is_relative_to(root)} - set(
        source_files
    )
    sizes = {
        file: root.joinpath(file).stat().st_size for file in read_files if _may_be_read(root, file)
    }
    if (num_bytes := sum(sizes.values())) > MAX_READ_BYTES:
        largest = max(sizes, key=lambda file: sizes[file])
        raise OutputError(
            f"The model reads {num_bytes} bytes from files of the model zoo, and a trained model"
            f" may carry {MAX_READ_BYTES} of them; the largest is {largest.as_posix()!r}"
            f" ({sizes[largest]} bytes).",
            received={"model_zoo": zoo, "files": len(sizes)},
            hint="Keep it outside of the model zoo, where it stays for predict, too, and give the"
            " model its path as a parameter (params).",
        )
    return sorted([*source_files, *sizes])


def copy(zoo: Path, files: Iterable[Path], *, to: Path) -> None:
    """Copy files of a zoo, by their relative paths, into a folder; missing parents are made.

    Raises:
        OSError: A file cannot be read or written.
    """
    for file in files:
        target = to / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(import_root(zoo) / file, target)


def digest(zoo: Path, files: Sequence[Path]) -> str:
    """SHA-256 of the names and contents of files of a zoo, in hex."""
    sha256 = hashlib.sha256()
    for file in sorted(files):
        content = zoo.joinpath(file).read_bytes()
        sha256.update(f"{file.as_posix()}\0{len(content)}\0".encode())
        sha256.update(content)
    return sha256.hexdigest()


def require_unchanged(trained_model: Path, recorded: str, *, trusts_changes: bool) -> None:
    """Refuse a trained model's code that has changed since the training; if trusted, log it.

    Raises:
        DataError: The code has changed.
    """
    zoo_copy = trained_model / "zoo"
    current = digest(zoo_copy, [file.relative_to(zoo_copy) for file in walk(zoo_copy)])
    if current == recorded:
        return
    changed = f"The code in {zoo_copy} is not the code that the model was trained with."
    if not trusts_changes:
        raise DataError(
            f"{changed} Its digest is {current[:12]}; the model was trained with"
            f" {recorded[:12] or 'none'}.",
            received={"trained_model": trained_model},
            hint=(
                "It would run with your rights: copy the model again, or find out who changed the"
                " code; trust=changed then runs it as it is."
            ),
        )
    log.warning("%s It runs nevertheless because of trust=changed.", changed)


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


def model_files(zoo: Path, model_def: str, modules: Sequence[str] = ()) -> list[Path]:
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
    # What submits a job has no other use for it, and need not import it.
    from edl_horovod.records.code_digest import imported_files

    root = import_root(zoo)
    definition_files = {file for group in file_groups(zoo, model_def) for file in group.files}
    module_files = (root.joinpath(*name.split(".")).with_suffix(".py") for name in modules)
    code = imported_files(sorted({*definition_files, *filter(Path.is_file, module_files)}), [root])
    return sorted(
        {*code, *(file for code_file in code for file in _files_named_in(code_file, root))}
    )


def _may_be_read(root: Path, file: Path) -> bool:
    """Whether `walk` would find a file of this relative path in the zoo."""
    left_out = ("__pycache__", "site-packages")
    if any(part.startswith(".") or part in left_out for part in file.parts):
        return False
    if not (root / file).resolve().is_relative_to(root.resolve()) or not (root / file).is_file():
        return False
    folders = [root / above for above in file.parents if above.parts]
    return not any((folder / name).exists() for folder in folders for name in _NOT_A_ZOO)


def _is_source(file: Path) -> bool:
    has_suffix = file.suffix in _SUFFIXES
    return has_suffix and file.is_file() and file.stat().st_size <= _MAX_FILE_BYTES


def _files_named_in(code: Path, root: Path) -> Iterator[Path]:
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
