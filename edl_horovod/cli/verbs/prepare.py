"""`edl prepare`: the user's own files become RecordIO files."""

from collections.abc import Sequence

from edl_horovod import api
from edl_horovod.cli.arguments import config_files, settings_parser
from edl_horovod.config import resolved
from edl_horovod.config.schema import PrepareConfig
from edl_horovod.displays.terminal import open_terminal, prepare_events
from edl_horovod.errors import EdlError
from edl_horovod.job import log

_EXAMPLES = """\
  edl prepare model_def=mnist data=/images/train output=/data/train
  edl prepare model_def=mnist data='/images/*/*.png' output=/data/train records_per_shard=1000
  edl prepare model_def=mnist data=@files.txt output=/data/train bad_files=skip
  mpirun -n 9 --hostfile hosts edl prepare launch=mpi model_def=mnist data=/images output=/out"""


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run `edl prepare`."""
    from edl_horovod.config.compose import compose_as, describe

    flag = "[--dry-run]"
    parser = settings_parser(verb, summary, PrepareConfig, flags=flag, examples=_EXAMPLES)
    parser.add_dry_run("print what would be done, and stop")
    flags, overrides = parser.parse_with_settings(argv)
    if flags.cfg:
        print(describe(verb, overrides, config_files(flags)))
        return 0
    config = compose_as(PrepareConfig, overrides, files=config_files(flags))
    if flags.dry_run:
        from edl_horovod import preparation as data_prepare

        print(resolved.to_yaml(config), end="")
        for line in data_prepare.describe(config):
            print(f"# {line}")
        return 0
    if config.launch == "mpi" and not _is_first_rank():
        return _serve(config)
    with open_terminal(is_quiet=flags.quiet, unit="files") as show:
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        result = api.run_prepare(config, on_progress=prepare_events(show))
    print(f"records: {result.num_records}")
    print(f"input files: {result.num_files} ({result.num_empty} without a record)")
    if result.num_bad:
        print(f"bad files: {result.num_bad}, listed in {result.bad_files}")
    print(f"output files: {len(result.files)}")
    print(f"output: {config.output}")
    return 0


def _is_first_rank() -> bool:
    from edl_horovod.preparation import pools

    return pools.is_first_rank()


def _serve(config: PrepareConfig) -> int:
    """Work for rank 0, which alone speaks to the user, of errors too."""
    try:
        api.run_prepare(config)
    except EdlError as e:
        return e.exit_code
    return 0
