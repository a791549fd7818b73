"""How the verbs read their arguments, and how they lay out what they print."""

import argparse
import contextlib
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.fields import REQUIRED, SET_BY_US, is_setting, needed, settings, type_name
from edl_horovod.displays.text import goodput_text, printable, privacy_text
from edl_horovod.errors import ConfigError, MissingDependency, did_you_mean, how_to_install
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.job.state import summarize

if TYPE_CHECKING:
    from edl_horovod.supervisor.run import JobResult


class VerbParser(argparse.ArgumentParser):
    """The parser of one verb; a wrong argument is a `ConfigError` like any other wrong setting."""

    def __init__(
        self,
        verb: str,
        summary: str,
        usage: str,
        *,
        epilog: Callable[[], str] = str,
        config_class: type | None = None,
    ) -> None:
        """Add the flags of every verb.

        Args:
            verb: Its name.
            summary: What it does.
            usage: What stands behind its name.
            epilog: Gives the end of the help. It is asked only for that: a table of all settings
                takes longer than the rest of a parser.
            config_class: Has the settings that the verb takes; None for a verb without.
        """
        super().__init__(
            prog=f"edl {verb}",
            usage=f"edl {verb} {usage}",
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._epilog = epilog
        self._config_class = config_class
        self.add_switch("--debug", help="show the traceback of an error")

    def add_job_dir(self) -> None:
        """Add the argument for the directory of a job, as a path."""
        self.add_argument("job_dir", metavar="JOB_DIR", type=_job_dir, help="directory of the job")

    def add_place(self) -> None:
        """Add the flags for the cluster and the namespace of a job."""
        text = "namespace of the job (default: the context's)"
        self.add_argument("-n", "--namespace", default="", help=text)
        text = "context of the kubeconfig (default: the current one)"
        self.add_argument("--context", default="", help=text)

    def add_format(self) -> None:
        """Add the flag for the output format, `table` or `json`."""
        text = "how to print the result (default: table)"
        self.add_argument("-o", "--format", choices=("table", "json"), default="table", help=text)

    def add_switch(self, *names: str, help: str) -> None:
        """Add a flag without a value."""
        self.add_argument(*names, action="store_true", help=help)

    def add_file(self, *names: str, help: str) -> None:
        """Add a flag whose value is the path of a file."""
        self.add_argument(*names, metavar="FILE", type=Path, help=help)

    def add_dry_run(self, help: str) -> None:
        """Add `--dry-run`."""
        self.add_switch("--dry-run", help=help)

    def add_quiet(self, help: str = "print only the result") -> None:
        """Add `-q`."""
        self.add_switch("-q", "--quiet", help=help)

    def add_address(self, *, host: str, port: int) -> None:
        """Add the flags for the address of a server; the host is by default of this machine."""
        text = "address to listen on (default: only this machine can connect)"
        self.add_argument("--host", default=host, help=text)
        text = "port to listen on; 0 means any free port"
        self.add_argument("--port", type=int, default=port, help=text)

    def add_config_files(self) -> None:
        """Add the flags of Hydra for files of settings, and for printing the composed settings."""
        text = "also search this directory for files of settings: +experiment=NAME"
        self.add_argument("-cd", "--config-dir", metavar="DIR", default="", help=text)
        text = "start from NAME.yaml, which begins with the settings of this verb"
        self.add_argument("-cn", "--config-name", metavar="NAME", default="", help=text)
        text = "print each setting and where it comes from, and stop"
        self.add_argument("-c", "--cfg", choices=("job",), help=text)

    def format_help(self) -> str:
        """The help, with its end."""
        self.epilog = self._epilog()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise ConfigError(f"{message}. See {self.prog} --help.")

    def parse_with_settings(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the flags, and the settings between them.

        `--key=value` and `--key value`, as ElasticDL's commands have it, are `key=value`.

        Raises:
            ConfigError: There is a flag that the verb does not have.
        """
        flags, rest = self.parse_known_args(argv)
        typed, words = [], iter(rest)
        for word in words:
            if word.startswith("--") and "=" in word:
                typed.append(word.removeprefix("--"))
            elif word.startswith("-"):
                typed.append(f"{word.removeprefix('--')}={self._value_of(word, next(words, None))}")
            else:
                typed.append(word)
        return flags, typed

    def _value_of(self, word: str, following: str | None) -> str:
        """The word that follows a setting which is written as a flag."""
        key = word.removeprefix("--")
        is_known = is_setting(key, self._config_class) if self._config_class else False
        is_value = following is not None and (is_known or "=" not in following)
        is_no_flag = word.startswith("--") and not did_you_mean(word, self._flags)
        if following is None or not is_value or not (is_known or is_no_flag):
            self._refuse(word, hint=f" A setting is written {word.lstrip('-')}=value.")
        return following

    def parse_all(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the flags and positionals; anything else is an error.

        Raises:
            ConfigError: There is something else.
        """
        flags, rest = self.parse_known_args(argv)
        if rest:
            self._refuse(rest[0])
        return flags

    def _refuse(self, word: str, *, hint: str = "") -> NoReturn:
        near = did_you_mean(word, self._flags)
        raise ConfigError(
            f"{self.prog} has no argument {word!r}.{near or hint} "
            f"Flags: {', '.join(self._flags)}. See {self.prog} --help."
        )

    @property
    def _flags(self) -> list[str]:
        return [flag for flag in self._option_string_actions if flag.startswith("--")]


def config_files(flags: argparse.Namespace) -> ConfigFiles:
    """The files of settings that the flags name."""
    return ConfigFiles(flags.config_dir, flags.config_name.removesuffix(".yaml"))


def settings_parser(
    verb: str,
    summary: str,
    config_class: type,
    *,
    flags: str,
    examples: str,
    more: Callable[[], str] = str,
) -> VerbParser:
    """Create the parser of a verb with settings, and with files of settings."""

    def epilog() -> str:
        table = _settings_table(config_class, required=needed(verb))
        return f"settings:\n{table}\n\n{more()}examples:\n{examples}\n"

    usage = f"{flags} [-q] [--debug]\n{' ' * 17}"
    usage += "[--config-dir DIR] [--config-name NAME] [--cfg job] key=value ..."
    parser = VerbParser(verb, summary, usage, epilog=epilog, config_class=config_class)
    parser.add_config_files()
    parser.add_quiet()
    return parser


def _settings_table(config_class: type, *, required: Sequence[str]) -> str:
    """Every key with its type, its default and, below, its meaning."""
    rows = [setting for setting in settings(config_class) if setting.key not in SET_BY_US]
    key_width = max(len(row.key) for row in rows)
    type_width = max(len(type_name(row.annotation)) for row in rows)
    columns = min(shutil.get_terminal_size().columns, 100)
    lines = [f"  {'KEY':{key_width}}  {'TYPE':{type_width}}  DEFAULT"]
    for row in rows:
        kind = type_name(row.annotation)
        default = default_text(REQUIRED if row.key in required else row.default)
        lines.append(f"  {row.key:{key_width}}  {kind:{type_width}}  {default}")
        lines += textwrap.wrap(
            row.meaning, columns, initial_indent=" " * 6, subsequent_indent=" " * 6
        )
    return "\n".join(lines)


def default_text(default: object) -> str:
    """A default as the help shows it."""
    if default is REQUIRED:
        return "(required)"
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return "(empty)" if default in ("", {}, []) else str(default)


def _job_dir(path: str) -> JobDir:
    return JobDir(Path(path))


@contextlib.contextmanager
def packages_of(extras: str, *, verb: str) -> Iterator[None]:
    """Import what needs the packages of extras.

    Raises:
        MissingDependency: A package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or "").startswith("edl_horovod"):
            raise
        raise MissingDependency(
            f"edl {verb} needs the package {e.name}, which is not installed.",
            hint=f"To have it, {how_to_install(extras)}.",
        ) from e


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """The lines; a fact without a value is left out."""
    return [f"{name:10} {value}" for name, value in facts.items() if value]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a table; the last column may be of any length."""
    texts = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(header) - 1)]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in texts]


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for people, of which a job, or who can write to its directory, has parts."""
    text = "\n".join(map(printable, lines))
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), flush=True)


def print_result(result: "JobResult") -> None:
    """Print how a job that ran here ended."""
    rows = {name: f"{value:.6g}" for name, value in result.metrics.items()}
    rows |= {"output": result.output} if result.output else {}
    rows |= {"job_dir": result.job_dir, "steps": str(result.steps)}
    rows["seconds"] = f"{result.seconds:.1f}"
    with contextlib.suppress(OSError):  # The job has succeeded all the same.
        state = summarize(events.Tail(JobDir(Path(result.job_dir)).events).new_events())
        facts = {
            "records": str(state.records or ""),
            "resets": str(state.num_resets or ""),
            "privacy": privacy_text(state.privacy),
            "goodput": goodput_text(state.account),
        }
        if state.task == "train" and result.output:
            facts["next"] = f"edl predict trained_model={shlex.quote(result.output)} data=..."
        # A metric of the user's may have the same name.
        rows |= {name: text for name, text in facts.items() if text and name not in rows}
    print_rows(rows)


def print_rows(rows: Mapping[str, str]) -> None:
    """Print facts that other programs may read, a line each."""
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        print(f"{name + ':':<{width}}{value}")
