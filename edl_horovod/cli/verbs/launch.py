"""`edl train` and the other tasks: compose the settings, run the job or a sweep of them, print."""

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edl_horovod import api
from edl_horovod.cli.arguments import (
    VerbParser,
    config_files,
    print_result,
    print_rows,
    settings_parser,
    table,
)
from edl_horovod.config.conf_files import ConfigFiles, choices_table
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.displays.page import address
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.errors import ConfigError, Interrupted, JobFailed
from edl_horovod.job import log
from edl_horovod.launch import target

if TYPE_CHECKING:
    from edl_horovod.config.sweep import Search
    from edl_horovod.sweeps.run import SweepJob, SweepResult

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
    "federate": """\
  edl federate job_dir=federation federated.parties=[north,south,west] \
      federated.listen=127.0.0.1:7100""",
}


def run(verb: str, summary: str, argv: Sequence[str]) -> int:
    """Run the verb of a task."""
    # By itself it is a flag, which must not take the setting behind it for its value.
    argv = ["--dry-run=client" if word == "--dry-run" else word for word in argv]
    flags, overrides = _parser(verb, summary).parse_with_settings(argv)
    files = config_files(flags)
    if verb == "train" and flags.multirun:
        if flags.cfg:
            problem = "--cfg shows the settings of one job."
            raise ConfigError(problem, received="--cfg and -m", hint="Leave out -m.")
        return _run_sweep(overrides, files, is_dry_run=bool(flags.dry_run), is_quiet=flags.quiet)
    from edl_horovod.config.compose import compose, describe

    if flags.cfg:
        print(describe(verb, overrides, files))
        return 0
    config = compose(verb, overrides, files=files)
    launch_target = target.target_of(config)
    if flags.output_format and not flags.dry_run:
        raise ConfigError("-o yaml goes with --dry-run.", received="-o without --dry-run")
    if flags.dry_run:
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        plan, is_whole = launch_target.plan(config), bool(flags.output_format)
        print(launch_target.describe(plan, check=flags.dry_run, whole=is_whole), end="")
        return 0
    if launch_target.is_detached:
        return _submit(launch_target, config, is_quiet=flags.quiet)
    with open_terminal(is_quiet=flags.quiet) as on_events:
        # After the display has opened: it makes room for the log's lines above its panel.
        log.setup("edl", level="error" if flags.quiet else config.log_level)
        result = api.run(config, on_events=on_events)
    print_result(result)
    return 0


def _parser(verb: str, summary: str) -> VerbParser:
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
        text = "train with each combination of key=a,b, one job after another"
        parser.add_switch("-m", "--multirun", help=text)
    text = "print what would run, and stop; =server also lets the cluster check it"
    parser.add_argument("--dry-run", choices=("client", "server"), help=text)
    text = "with --dry-run: print complete manifests"
    parser.add_argument("-o", dest="output_format", choices=("yaml",), help=text)
    return parser


def _submit(
    launch_target: target.LaunchTarget[Any, Any], config: JobConfig, *, is_quiet: bool
) -> int:
    # SIGTERM ends a submission as Ctrl-C does: what was made is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log.setup("edl", level="error" if is_quiet else config.log_level)
    submitted = launch_target.launch(launch_target.plan(config))
    place = "".join(f" --{key} {shlex.quote(value)}" for key, value in submitted.place.items())
    rows = {"job": submitted.name, **submitted.details, "output": submitted.output}
    rows |= {"job_dir": submitted.job_dir, "dashboard": address.url()}
    print_rows({name: value for name, value in rows.items() if value})
    if not is_quiet:
        print(
            "The job runs in the cluster, whatever becomes of this terminal. Look after it with"
            f"\n  edl logs {submitted.name} -f{place}\n  edl status {submitted.name}{place}"
            f"\n  edl dashboard {submitted.name}{place}   (serves the page above)",
            file=sys.stderr,
        )
    return 0


def _run_sweep(
    overrides: Sequence[str], files: ConfigFiles, *, is_dry_run: bool, is_quiet: bool
) -> int:
    """Run a sweep, or show its jobs.

    Raises:
        JobFailed: One job or more failed.
        Interrupted: The user ended it.
    """
    from edl_horovod.config.sweep import Search, expand
    from edl_horovod.sweeps import run as sweeps

    points = expand(overrides, files)
    if isinstance(points, Search):
        return _search(points, files, is_dry_run=is_dry_run, is_quiet=is_quiet)
    plan = sweeps.make_plan(points, files)
    if is_dry_run:
        print(_table(plan.jobs))
        return 0
    result = sweeps.run(plan, _runner([job.name for job in plan.jobs], is_quiet=is_quiet))
    _finish(result)
    return 0


def _search(search: "Search", files: ConfigFiles, *, is_dry_run: bool, is_quiet: bool) -> int:
    from edl_horovod.sweeps import run as sweeps
    from edl_horovod.sweeps import search as searches

    config = search.config
    if is_dry_run:
        searches.check_search(search, files)
        print(f"{config.n_trials} jobs, chosen by Optuna to {config.direction} {config.metric}:")
        for parameter in search.space.values():
            print(f"  {parameter.written}")
        return 0
    result = searches.run_search(search, files, _runner([], is_quiet=is_quiet))
    best = ""
    if job := sweeps.best_of(result, config):
        best = f"best: {job.name} ({config.metric} {_number(job.metrics[config.metric])})"
    _finish(result, best)
    return 0


def _finish(result: "SweepResult", best: str = "") -> None:
    """Print how the jobs ended, each error once, and raise where some did not finish."""
    print(_table(result.jobs))
    for error in dict.fromkeys(job.error for job in result.failed):
        names = [job.name for job in result.failed if job.error == error]
        print(f"\nfailed: {', '.join(names)}\n  {error}")
    print(f"\noutput: {result.output} (sweep.json, sweep.csv)")
    if best:
        print(best)
    if result.is_interrupted:
        raise Interrupted(
            "The sweep was interrupted; all processes of its job have ended. "
            "The same command goes on with the jobs that are not finished."
        )
    if result.failed:
        raise JobFailed(
            f"{len(result.failed)} of {len(result.jobs)} jobs failed. "
            "The same command tries them again."
        )


def _runner(names: Sequence[str], *, is_quiet: bool) -> Callable[["SweepJob", JobConfig], None]:
    """What runs one job after another, with a display of its own for each."""

    def run_job(job: "SweepJob", config: JobConfig) -> None:
        if not is_quiet:
            of = f" {names.index(job.name) + 1} of {len(names)}" if names else ""
            chosen = " ".join(f"{key}={value}" for key, value in job.chosen.items())
            print(f"job{of}: {chosen}", file=sys.stderr, flush=True)
        with open_terminal(is_quiet=is_quiet) as on_events:
            log.setup("edl", level="error" if is_quiet else config.log_level)
            api.run(config, on_events=on_events)

    return run_job


def _table(jobs: Sequence["SweepJob"]) -> str:
    metrics = list(dict.fromkeys(name for job in jobs for name in job.metrics))
    measured = ["TRAIN LOSS", *(f"VAL {name}" for name in metrics), "SECONDS"]
    rows = []
    for job in jobs:
        numbers = [_number(job.metrics.get(name)) for name in metrics]
        seconds = f"{job.seconds:.1f}" if job.seconds else ""
        rows.append([*job.chosen.values(), job.state, _number(job.loss), *numbers, seconds])
    return "\n".join(table([*jobs[0].chosen, "STATE", *measured], rows))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
