"""`edl train` and the other tasks: compose the settings, run the job, print."""

import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edl_horovod.cli.arguments import VerbParser, config_files, settings_parser
from edl_horovod.cli.layout import print_result, print_rows
from edl_horovod.config.conf_files import choices_table
from edl_horovod.config.tasks import TASKS
from edl_horovod.displays import open_displays
from edl_horovod.displays.page import address
from edl_horovod.errors import ConfigError
from edl_horovod.job import log

if TYPE_CHECKING:
    from edl_horovod.config.schema import JobConfig
    from edl_horovod.launch.target import LaunchTarget

__all__ = ["run"]

_EXAMPLES = {
    "train": """\
  edl train model_def=mnist data='/data/train-*.recordio' output=/models/mnist
  edl train model_def=mnist data=train.recordio output=m launch.np=4 train.epochs=3
  edl train model_def=regressor.DNN data='*.recordio' output=m \\
      params="hidden_units=[10, 100, 20, 5], learning_rate=0.01"
  edl train model_zoo=credit.py data='*.recordio' output=m loss=mse optimizer=adam
  edl train model_zoo=git+https://host/models.git@v2 model_def=mnist data='*.recordio' output=m
  edl train model_def=mnist data=train.recordio output=m launch=mpi launch.np=2 --dry-run
  edl train --config-dir conf +experiment=first train.epochs=3
  edl train model_def=mnist data='/data/*.recordio' output=/data/m launch=kubernetes launch.np=4 \\
      image=registry.example.com/team/zoo:1 kubernetes.volumes.data.claim=shared \\
      kubernetes.volumes.data.mount=/data
  edl train -m train.learning_rate=0.1,0.01 params.hidden_units=[10],[20] \\
      model_def=regressor.DNN data='*.recordio' output=sweeps/dnn""",
    "evaluate": """\
  edl evaluate trained_model=/models/mnist data='/data/test-*.recordio'
  edl evaluate trained_model=/models/mnist data=test.recordio output=/results/mnist""",
    "predict": """\
  edl predict trained_model=/models/mnist data='/data/new-*.recordio' output=/results/new
  edl predict trained_model=/models/mnist data=new.recordio output=answers.recordio launch.np=2""",
}


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb of a task."""
    # By itself it is a flag, which must not take the setting behind it for its value.
    argv = ["--dry-run=client" if word == "--dry-run" else word for word in argv]
    flags, overrides = _parser(verb, summary).parse_with_settings(argv)
    files = config_files(flags)
    if verb == "train" and flags.multirun:
        from edl_horovod.cli.verbs import sweep

        if flags.cfg:
            raise ConfigError(
                "--cfg shows the settings of one job.",
                received="--cfg and -m",
                hint="Leave out -m.",
            )
        return sweep.run(
            overrides, files=files, is_dry_run=bool(flags.dry_run), is_quiet=flags.quiet
        )
    from edl_horovod.config.compose import compose, describe
    from edl_horovod.launch import target

    if flags.cfg:
        print(describe(verb, overrides, files))
        return 0
    config = compose(verb, overrides, files=files)
    launch_target = target.find(config.launch.kind)
    if flags.output_format and not flags.dry_run:
        raise ConfigError("-o yaml goes with --dry-run.", received="-o without --dry-run")
    if flags.dry_run:
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        plan, is_whole = launch_target.plan(config), bool(flags.output_format)
        print(launch_target.describe(plan, check=flags.dry_run, whole=is_whole), end="")
        return 0
    if launch_target.is_detached:
        return _submit(launch_target, config, is_quiet=flags.quiet)
    from edl_horovod import api

    with open_displays(is_quiet=flags.quiet) as on_events:
        # After the display has opened: it makes room for the log's lines above its bar.
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        result = api.run(config, on_events=on_events)
    print_result(result)
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
    from edl_horovod.config.schema import JobConfig

    needs = " ".join(f"{key}=..." for key in TASKS[verb].needs)
    parser = settings_parser(
        verb,
        summary,
        JobConfig,
        flags=f"{'[-m] ' if verb == 'train' else ''}[--dry-run[=server] [-o yaml]]",
        examples=_EXAMPLES.get(verb, f"  edl {verb} {needs}"),
        more=lambda: f"choices of settings:\n{choices_table()}\n\n",
    )
    if verb == "train":
        parser.add_argument(
            "-m",
            "--multirun",
            action="store_true",
            help="train with each combination of key=a,b, one job after another",
        )
    parser.add_argument(
        "--dry-run",
        choices=("client", "server"),
        help="print what would run, and stop; =server also lets the cluster check it",
    )
    parser.add_argument(
        "-o",
        dest="output_format",
        choices=("yaml",),
        help="with --dry-run: print complete manifests",
    )
    return parser


def _submit(launch_target: "LaunchTarget[Any, Any]", config: "JobConfig", *, is_quiet: bool) -> int:
    # SIGTERM ends a submission as Ctrl-C does: what was made is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log.setup("edl", level="error" if is_quiet else config.log_level)
    submitted = launch_target.launch(launch_target.plan(config))
    place = "".join(f" --{key} {shlex.quote(value)}" for key, value in submitted.place.items())
    rows = {
        "job": submitted.name,
        **submitted.details,
        "output": submitted.output,
        "job_dir": submitted.job_dir,
        "dashboard": address.url(),
    }
    print_rows({name: value for name, value in rows.items() if value})
    if not is_quiet:
        print(
            "The job runs in the cluster, whatever becomes of this terminal. Look after it with"
            f"\n  edl logs {submitted.name} -f{place}\n  edl status {submitted.name}{place}"
            f"\n  edl dashboard {submitted.name}{place}   (serves the page above)",
            file=sys.stderr,
        )
    return 0
