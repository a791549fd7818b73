"""Hydra, opened for one composition: our directory, the user's, and the schema."""

import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import version as hydra_version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobRuntime
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from edl_horovod.config.conf_files import ConfigFiles, conf_dir
from edl_horovod.config.fields import flat
from edl_horovod.config.search import SAMPLERS, SamplerConfig, SearchConfig

__all__ = ["open_hydra", "origins"]

_SCHEMA = "edl_horovod_"
_LOCK = threading.Lock()
"""Hydra's state is global to the process, and two threads may each start a job."""


@contextmanager
def open_hydra(config_class: type, verb_file: str, files: ConfigFiles) -> Iterator[ConfigLoader]:
    """Open Hydra with our directory, the user's directory and a schema.

    The Hydra of the program that calls us is restored at the end.

    Raises:
        ConfigError: The user's directory cannot be used.
    """
    search_path = create_config_search_path(str(conf_dir()))
    if (user_dir := files.path) is not None:
        before = SearchPathQuery(provider="schema")
        search_path.prepend("command-line", f"file://{user_dir}", anchor=before)
    with _LOCK, _outer_hydra_kept():
        hydra_version.setbase("1.3")
        ConfigStore.instance().store(name=_SCHEMA + verb_file, node=_schema_node(config_class))
        _store_sweeper()
        hydra = Hydra.create_main_hydra2("edl_horovod", search_path)
        yield hydra.config_loader


def origins(loader: ConfigLoader, config_name: str, overrides: Sequence[str]) -> dict[str, str]:
    """The file that sets each key, by the key with dots; keys that no file sets are left out."""
    defaults = loader.compute_defaults_list(config_name, list(overrides), RunMode.RUN).defaults
    files_by_key: dict[str, str] = {}
    for default in defaults:
        path = default.config_path or ""
        source = next(
            (
                source_option
                for source_option in loader.get_sources()
                if source_option.is_config(path)
            ),
            None,
        )
        if path.startswith(("hydra/", _SCHEMA)) or source is None:
            continue
        content = OmegaConf.to_container(source.load_config(path).config, resolve=False)
        package = (default.package or "").removeprefix("_global_").strip(".")
        prefix = f"{package}." if package else ""
        file = _shown(Path(source.path) / f"{path.removesuffix('.yaml')}.yaml")
        files_by_key |= {key: file for key, _ in flat(content, prefix)}
    return files_by_key


def _shown(file: Path) -> str:
    """A file's path for people: our files from `conf/` on, others relative to the directory."""
    if file.is_relative_to(conf_dir()):
        return f"conf/{file.relative_to(conf_dir())}"
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)


@contextmanager
def _outer_hydra_kept() -> Iterator[None]:
    """Restore Hydra's process-wide state at the end, also inside a function of `@hydra.main`."""
    outer, outer_base = GlobalHydra.instance().hydra, hydra_version.VersionBase.instance().getbase()
    outer_job = JobRuntime.instance().conf.copy()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer
        hydra_version.VersionBase.instance().version_base = outer_base
        JobRuntime.instance().conf = outer_job


@functools.cache
def _store_sweeper() -> None:
    """Register `hydra/sweeper=optuna` and its samplers, with the keys of Hydra's plugin.

    The plugin itself does not work with current versions of Optuna.
    """
    store = ConfigStore.instance()
    search = dataclasses.asdict(SearchConfig()) | {"defaults": [{"sampler": "tpe"}], "params": None}
    store.store(group="hydra/sweeper", name="optuna", node=search)
    for name in SAMPLERS:
        sampler = dataclasses.asdict(SamplerConfig(name=name))
        store.store(group="hydra/sweeper/sampler", name=name, node=sampler)


@functools.cache  # Hydra copies the nodes of its store.
def _schema_node(config_class: type) -> DictConfig:
    """The schema for Hydra, writable: OmegaConf makes nodes of frozen dataclasses read-only."""
    node: DictConfig = OmegaConf.structured(config_class)
    _make_writable(node)
    return node


def _make_writable(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, None)
    for key in node:
        if isinstance(child := node.get(key), DictConfig):
            _make_writable(child)
