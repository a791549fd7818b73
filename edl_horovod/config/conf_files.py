"""The directories that come with the package, and the user's own directory of settings."""

import itertools
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import ConfigError


@dataclass(frozen=True)
class ConfigFiles:
    """The values of `--config-dir` and `--config-name`."""

    directory: str = ""
    """A directory that is searched after ours; empty where the user has none."""
    name: str = ""
    """The file that composing starts from, without `.yaml`; empty takes the verb's own."""

    @property
    def path(self) -> Path | None:
        """The user's directory, absolute.

        Raises:
            ConfigError: It does not exist, or a file in it has the same name as one of ours, which
                would be used instead, and another content.
        """
        if not self.directory:
            return None
        path = Path(self.directory).expanduser().absolute()
        if not path.is_dir():
            raise ConfigError(
                "The directory of --config-dir does not exist.",
                received=f"--config-dir={self.directory}",
                hint="Give a directory with .yaml files.",
            )
        for ours in sorted(conf_dir().rglob("*.yaml")):
            file = path / ours.relative_to(conf_dir())
            if file.is_file() and ours.read_bytes() != file.read_bytes():
                raise ConfigError(
                    f"{file} has the name of a file of edl_horovod, which Hydra finds first.",
                    received=f"--config-dir={self.directory}",
                    hint="Give the file another name.",
                )
        return path


NO_FILES = ConfigFiles()


def conf_dir() -> Path:
    """The directory of the settings that come with the package.

    Raises:
        ConfigError: It is missing.
    """
    return _shipped("conf", "config.yaml")


def template_dir(template: str) -> Path:
    """The directory of a project that `edl init` copies.

    Raises:
        ConfigError: It is missing.
    """
    return _shipped(f"starter/{template}", "README.md")


def zoo_dir() -> Path:
    """The directory of the models that come with the package.

    Raises:
        ConfigError: It is missing.
    """
    return _shipped("model_zoo", "requirements.txt")


def _shipped(name: str, file: str) -> Path:
    """A directory in the installed package, or beside it in the source tree."""
    package = Path(__file__).resolve().parent.parent
    places = (package / name, package.parent / name)
    for place in places:
        if (place / file).is_file():
            return place
    raise ConfigError(
        f"The directory {name}/ of this installation is missing.",
        received=" and ".join(map(str, places)),
        hint="Install edl_horovod again.",
    )


def choices_table() -> str:
    """Every choice of every group, with the sentence at the head of its file."""
    files = {f"{file.parent.name}={file.stem}": file for file in conf_dir().glob("*/*.yaml")}
    width = max(map(len, files))
    return "\n".join(f"  {name:{width}}  {_sentence(files[name])}" for name in sorted(files))


def _sentence(file: Path) -> str:
    """The comment at a file's head."""
    lines = file.read_text(encoding="utf-8").splitlines()
    head = itertools.takewhile(lambda line: line.startswith("#"), lines)
    texts = (line.removeprefix("#").strip() for line in head)
    return " ".join(text for text in texts if not text.startswith("@package"))
