"""MLflow: a job as a run of an experiment, by MLflow's own client."""

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.runs import Point, Run
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.job.events import OnEvents, Recorded

try:
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient
except ImportError as e:
    raise MissingDependency(
        f"displays=[mlflow] needs a package that is not installed: {e}.",
        hint=f"To have it, {how_to_install('mlflow')}.",
    ) from e

EXPERIMENT = "edl_horovod"
"""The experiment of jobs, unless MLFLOW_EXPERIMENT_NAME names another."""
_MOST_METRICS = 500
"""Numbers in one request; MLflow takes 1,000."""
_MOST_SETTINGS = 100
"""Parameters that MLflow takes in one request."""
_NAME_LENGTH = 250
"""Characters of a name that MLflow takes."""
_ENDS = {"finished": "FINISHED", "failed": "FAILED", "suspended": "KILLED"}


@contextlib.contextmanager
def open_display(config: JobConfig) -> Iterator[OnEvents]:
    """Log a job's numbers to the server of MLFLOW_TRACKING_URI, or else to the job's directory."""
    run = Run(config, "mlflow")
    default = f"sqlite:///{run.folder.resolve()}/mlflow.db"
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default)
    if run.id:
        client.update_run(run.id, status="RUNNING")
    else:
        _begin(run, client)

    def show(events: list[Recorded]) -> None:
        metrics = [metric for point in run.new_points(events) for metric in _metrics(point)]
        for first in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run.id, metrics=metrics[first : first + _MOST_METRICS])

    try:
        yield show
    finally:
        if status := _ENDS.get(run.state):
            client.set_terminated(run.id, status)


def _begin(run: Run, client: MlflowClient) -> None:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run.begin(client.create_run(number, run_name=run.name).info.run_id)
    settings = {_name(key): value for key, value in run.settings.items()}
    params = [Param(key, value) for key, value in settings.items()]
    for first in range(0, len(params), _MOST_SETTINGS):
        client.log_batch(run.id, params=params[first : first + _MOST_SETTINGS])


def _metrics(point: Point) -> list[Metric]:
    milliseconds = round(point.time * 1000)
    return [
        Metric(_name(name), value, milliseconds, point.step) for name, value in point.values.items()
    ]


def _name(name: str) -> str:
    """A name as MLflow takes it: few characters, and a path in its shortest form."""
    return posixpath.normpath(re.sub(r"[^\w/.\- :]", "_", name))[:_NAME_LENGTH]
