"""The command `edl`: find the verb, run it, turn an error into one message and its exit code."""

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import edl_horovod
from edl_horovod import errors
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import (
    TOO_MANY_FILES,
    ConfigError,
    EdlError,
    Interrupted,
    MissingDependency,
    did_you_mean,
    hint_of,
)
from edl_horovod.extensions import Table

__all__ = ["VERBS", "Verb", "errors_of_verbs", "main"]


@dataclass(frozen=True)
class Verb:
    """One verb of the command."""

    summary: str
    module: str
    """Imported only when the verb is used."""
    function: str = "run"
    """The function in it: it takes the verb's name, this summary and the words after the verb, and
    returns the exit code."""


def _verb(summary: str, module: str, function: str = "run") -> Verb:
    return Verb(summary, f"edl_horovod.cli.verbs.{module}", function)


VERBS: Table[Verb] = Table(
    "verbs",
    {
        "init": _verb("Write a project to start from.", "init"),
        "prepare": _verb("Turn your own files into RecordIO files.", "prepare"),
        "party": _verb("Take part in a federated training with data of one's own.", "party"),
        "import-ibm-fl": _verb(
            "Print the settings that files of IBM Federated Learning stand for.",
            "party",
            "run_import",
        ),
        "sql": _verb("Run statements in SQL that train models on tables and predict.", "sql"),
        "serve-sql": _verb("Run statements in SQL for clients of SQLFlow.", "serve_sql"),
        "image": _verb("Build the image of a model zoo, and push it.", "image"),
        "spec": _verb("Show a model spec's files, or write a model of a zoo as one.", "spec"),
        "setup-horovod": _verb(
            "Build Horovod for the frameworks of this environment.", "setup_horovod"
        ),
        "doctor": _verb("Show what of this machine works for jobs, and what does not.", "doctor"),
        "scale": _verb("Change how many ranks a running job has.", "jobs", "run_scale"),
        "status": _verb("Show where a job is, and what it waits for.", "jobs", "run_status"),
        "dashboard": _verb(
            "Serve pages that show a job, or the jobs below a folder.", "jobs", "run_dashboard"
        ),
        "top": _verb("Show a job live, in a terminal.", "jobs", "run_top"),
        "list": _verb("List jobs on this machine and in a cluster.", "jobs", "run_list"),
        "logs": _verb("Show what the processes of a job wrote.", "jobs", "run_logs"),
        "events": _verb("Show what happened to a job.", "jobs", "run_events"),
        "report": _verb("Show where the time of a job went.", "jobs", "run_report"),
        "wait": _verb("Wait until a job reaches a state.", "jobs", "run_wait"),
        "stop": _verb("Save a checkpoint of a job and end it, to go on later.", "jobs", "run_stop"),
        "resume": _verb("Resume a stopped job from its newest checkpoint.", "jobs", "run_resume"),
        "delete": _verb(
            "Remove a job's directory, or a job from its cluster.", "jobs", "run_delete"
        ),
        "ledger": _verb("Prove that a job applied each record exactly once.", "ledger"),
        "chaos": _verb("Kill, stop, add and remove workers of a running job.", "chaos"),
    },
)
"""The verbs in addition to the tasks, each of which is a verb, too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments; None takes those of the process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except BrokenPipeError:
        # The reader of our output has enough, as in `edl train --help | head`. Python would
        # complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as e:
        if (error := _as_ours(e)) is None:
            raise
        if "--debug" in words:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _as_ours(error: BaseException) -> EdlError | None:
    """The error for the user; None where only a traceback says what happened."""
    if isinstance(error, EdlError):
        return error
    if _is_interrupted(error):
        return Interrupted("interrupted")
    if not isinstance(error, OSError):
        return None
    if error.errno in TOO_MANY_FILES:
        return MissingDependency(f"{error.strerror}.", hint=hint_of(error))
    if error.filename is None:
        return None
    return ConfigError(
        f"A file or a folder cannot be used: {error.strerror}.",
        received=repr(error.filename),
        hint="Check its name and what this user may do there.",
    )


def _is_interrupted(error: BaseException | None) -> bool:
    # Errors replace a Ctrl-C that comes while Python 3.11 makes a class, or within OmegaConf, whose
    # `finally` then uses a name that is not there yet.
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help") or words == ["help"]:
        print(_help(), file=sys.stdout if words else sys.stderr)
        return 0 if words else ConfigError.exit_code
    if words[0] == "--version":
        print(f"edl_horovod {edl_horovod.__version__}")
        return 0
    if words[0] == "--debug":
        words = words[1:] + words[:1]
    if words[0] == "help":
        words = [*words[1:], "--help"]
    name, *rest = words
    verb = _find_verb(name)
    code = getattr(import_module(verb.module), verb.function)(name, verb.summary, rest)
    sys.stdout.flush()
    return int(code)


def _find_verb(name: str) -> Verb:
    # What is built in comes first, and needs no look for other packages.
    if name not in VERBS.built_in and name in TASKS:
        return _verb(TASKS[name].summary, "launch")
    if name in VERBS:
        return VERBS[name]
    names = [*TASKS, *VERBS]
    raise ConfigError(
        f"There is no verb {name!r}.{did_you_mean(name, names)} "
        f"Verbs: {', '.join(names)}. See edl --help."
    )


def _help() -> str:
    summaries = {name: task.summary for name, task in TASKS.loaded().items()}
    summaries |= {name: verb.summary for name, verb in VERBS.loaded().items()}
    width = max(map(len, summaries))
    verbs = "\n".join(f"  {name:{width}}  {summary}" for name, summary in summaries.items())
    meanings = {0: "Success."} | {kind.exit_code: meaning for kind, meaning in errors_of_verbs()}
    codes = "\n".join(f"  {code:<5} {meaning}" for code, meaning in meanings.items())
    return (
        "usage: edl VERB [FLAGS] [key=value ...]\n\n"
        "Elastic training of Keras and PyTorch models on a ring of Horovod workers.\n\n"
        f"verbs:\n{verbs}\n\n"
        "  edl VERB --help shows the flags, the settings and examples. All verbs take --debug.\n\n"
        f"exit codes:\n{codes}"
    )


def errors_of_verbs() -> list[tuple[type[EdlError], str]]:
    """The errors with which a verb may end and their meanings, in the order of the exit codes."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ends = [kind for kind in kinds if issubclass(kind, EdlError) and kind is not EdlError]
    ends.sort(key=lambda kind: kind.exit_code)
    return [(kind, (kind.__doc__ or "").partition("\n")[0]) for kind in ends]
