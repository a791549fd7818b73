"""`edl list`: jobs on this machine and in a cluster."""

import dataclasses
import time
from collections.abc import Sequence

from edl_horovod.cli.arguments import VerbParser
from edl_horovod.cli.jobs import client_of
from edl_horovod.cli.layout import table
from edl_horovod.displays.text import ago
from edl_horovod.errors import ConfigError, MissingDependency, NoCluster
from edl_horovod.files import json_text
from edl_horovod.launch.jobs import JobRow

__all__ = ["run"]

_HEADER = ("NAMESPACE", "JOB", "STATE", "RANKS", "STEP", "AGE", "MESSAGE")
_RULE = """\
With folders, the jobs on this machine in and up to three folders below them. With -n, -A or
--context, the jobs in the cluster. With none of these, the jobs below the current folder, and those
in the cluster where one is configured. RANKS are those of the ring and those that were asked for;
in a cluster they are worker pods, the warm ones and those that were asked for.
"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl list`."""
    usage = "[-n NAMESPACE | -A] [--context CONTEXT] [-o json] [--debug] [FOLDER ...]"
    parser = VerbParser(verb, summary=summary, usage=usage, epilog=lambda: _RULE)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", help="where jobs are looked for")
    parser.add_place()
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of the whole cluster")
    parser.add_format()
    flags = parser.parse_all(argv)
    is_of_cluster = bool(flags.namespace or flags.context or flags.all_namespaces)
    if flags.folders and is_of_cluster:
        raise ConfigError(
            "Folders are on this machine, and -n, -A and --context mean a cluster.",
            received=" ".join(argv),
            hint="Leave one of the two out.",
        )
    rows: list[JobRow] = []
    with client_of(flags) as client:
        if not is_of_cluster:
            rows = client.list(flags.folders or ["."])
        try:
            if not flags.folders:
                rows += client.list(all_namespaces=flags.all_namespaces)
        except (NoCluster, MissingDependency):
            if is_of_cluster:
                raise
        finally:
            # Where the cluster cannot be asked, the jobs of this machine are shown all the same.
            if rows or not is_of_cluster:
                _print(rows, is_json=flags.format == "json")
    return 0


def _print(rows: Sequence[JobRow], *, is_json: bool) -> None:
    if is_json:
        print(json_text.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return
    now = time.time()
    cells = [
        (
            row.namespace or "-",
            row.job,
            row.state,
            f"{row.num_ready}/{row.num_wanted}",
            "" if row.step is None else f"{row.step}/{row.total_steps}",
            ago(row.created, now),
            row.message,
        )
        for row in rows
    ]
    print("\n".join(table(_HEADER, cells)))
