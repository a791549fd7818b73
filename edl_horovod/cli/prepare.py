"""`edl prepare`: the user's own files become RecordIO files."""

from collections.abc import Sequence

from edl_horovod import log
from edl_horovod.cli.arguments import VerbParser, settings_table
from edl_horovod.cli.progress import open_display, prepare_events

__all__ = ["run"]

_EXAMPLES = """\
  edl prepare model_def=mnist data=/images/train output=/data/train
  edl prepare model_def=mnist data='/images/*/*.png' output=/data/train records_per_shard=1000"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb.

    Args:
        verb: `prepare`.
        summary: One line about it.
        argv: What follows it.
    """
    flags, overrides = _parser(verb, summary).parse_with_settings(argv)
    from edl_horovod.config import resolved
    from edl_horovod.config.compose import compose_prepare

    config = compose_prepare(overrides)
    if flags.dry_run:
        print(resolved.to_yaml(config), end="")
        return 0
    from edl_horovod import api

    with open_display(is_quiet=flags.quiet, unit="files") as show:
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        result = api.run_prepare(config, on_progress=prepare_events(show))
    print(f"records: {result.num_records}")
    print(f"input files: {result.num_files} ({result.num_skipped} without a record)")
    print(f"output files: {len(result.files)}")
    print(f"output: {config.output}")
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    from edl_horovod.config.schema import PrepareConfig

    parser = VerbParser(
        verb,
        summary=summary,
        usage="[--dry-run] [-q] [--debug] key=value ...",
        epilog=f"settings:\n{settings_table(PrepareConfig)}\n\nexamples:\n{_EXAMPLES}\n",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the settings, and stop")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the result")
    return parser
