"""Tables of extensions, to which other installed packages can add by entry points.

A package adds a name to a table by an entry point of the group `edl_horovod.TABLE`, which refers to
the value for the name (docs/how-to/extend.md). Entry points are searched only for names that are
not built in, or for a list of all names, so that the usual command does not take the time.
"""

import functools
import importlib
import os
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from edl_horovod.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Table", "module_of", "object_of"]

T = TypeVar("T")


def object_of(point: "EntryPoint") -> Any:
    """Load the object that an entry point refers to."""
    return point.load()


def module_of(point: "EntryPoint") -> str:
    """The name of an entry point's module, for tables of modules that are imported when used."""
    return point.value


class Table(UserDict[str, T]):
    """Values by name: built-in ones, and those of other packages, which cannot replace them."""

    def __init__(
        self,
        name: str,
        built_in: Mapping[str, T],
        *,
        load: Callable[["EntryPoint"], Any] = object_of,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """Create a table.

        Args:
            name: The end of the entry points' group: `sources` for `edl_horovod.sources`.
            built_in: The built-in values.
            load: Converts an entry point to a value; by default, loads the object.
            places: Further built-in values, by `module:name`; the module is imported when used.
        """
        super().__init__(built_in)
        self._places = dict(places or {})
        self.built_in = frozenset((*built_in, *self._places))
        self._name = name
        self._load = load

    def loaded(self) -> dict[str, T]:
        """Load all values; those that cannot be loaded are left out, with a warning."""
        values = {}
        for name in self:
            try:
                values[name] = self[name]
            except ConfigError as error:
                _warn("%s", error)
        return values

    def __missing__(self, key: str) -> T:
        if key in self._places:
            module, _, name = self._places[key].partition(":")
            built_in: T = getattr(importlib.import_module(module), name)
            self.data[key] = built_in
            return built_in
        point = self._added[key]
        try:
            value: T = self._load(point)
        except Exception as error:
            package = point.dist.name if point.dist is not None else "a package"
            raise ConfigError(
                f"{package} adds {key!r} to the {self._name} of edl_horovod, and it cannot be"
                f" loaded: {error!r}.",
                received={f"edl_horovod.{self._name}": f"{key} = {point.value}"},
                hint=f"Repair or remove the package {package}.",
            ) from error
        self.data[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return key in self.data or key in self._places or key in self._added

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._places, *self.data, *self._added)))

    def __len__(self) -> int:
        return len({*self._places, *self.data, *self._added})

    @functools.cached_property
    def _added(self) -> "dict[str, EntryPoint]":
        """The entry points of other packages, by name."""
        added: dict[str, EntryPoint] = {}
        if not _any_package_adds(tuple(sys.path)):
            return added
        from importlib.metadata import entry_points

        for point in entry_points(group=f"edl_horovod.{self._name}"):
            if point.name in {*self._places, *self.data, *added}:
                _warn(
                    "%s adds %r to the %s of edl_horovod, where that name is taken: it is ignored",
                    point.dist.name if point.dist is not None else "a package",
                    point.name,
                    self._name,
                )
            else:
                added[point.name] = point
        return added


@functools.cache
def _any_package_adds(path: tuple[str, ...]) -> bool:
    """Whether a package on a path has an entry point for one of the tables.

    `importlib.metadata` would need as much time for this as all of `edl --help`.
    """
    for folder in path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # A zip archive, or a folder that does not exist.
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as stream:
                        if b"[edl_horovod." in stream.read():
                            return True
                except OSError:
                    continue
    return False


def _warn(message: str, *args: object) -> None:
    import logging  # Imported here, to keep `edl --help` fast.

    logging.getLogger(__name__).warning(message, *args)
