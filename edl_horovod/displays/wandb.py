"""Weights & Biases: a job as a run of a project, by its own client."""

import contextlib
import os
import secrets
from collections.abc import Iterator

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays import following
from edl_horovod.displays.runs import Run
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.job.events import OnEvents, Recorded

try:
    import wandb
except ImportError as e:
    raise MissingDependency(
        f"displays=[wandb] needs a package that is not installed: {e}.",
        hint=f"To have it, {how_to_install('wandb')}.",
    ) from e

PROJECT = "edl_horovod"
"""The project of jobs, unless WANDB_PROJECT names another."""
_WAIT_SHARE = 0.8
"""The share of the time for the last events in which the client may wait for its server."""


@contextlib.contextmanager
def open_display(config: JobConfig) -> Iterator[OnEvents]:
    """Log a job's numbers as the client's own variables say, such as WANDB_MODE=offline."""
    run = Run(config, "wandb")
    if not run.id:
        run.begin(secrets.token_hex(4))
    # Without a key it would ask for one in the command's terminal, unless the process is silent.
    wandb.setup(wandb.Settings(silent=True))
    logged = wandb.init(
        id=run.id,
        resume="allow",
        reinit="create_new",  # A sweep has several jobs in one process.
        name=run.name,
        project=os.environ.get("WANDB_PROJECT") or PROJECT,
        dir=os.environ.get("WANDB_DIR") or str(run.folder),
        config=run.settings,
        settings=wandb.Settings(
            # The terminal is the command's, and the launcher's machine says little of the ranks.
            console="off",
            silent=True,
            x_disable_stats=True,
            # Or it waits for a server that is away until the server is back, also at exit.
            init_timeout=_WAIT_SHARE * following.CLOSE_SECONDS,
            finish_timeout=_WAIT_SHARE * following.CLOSE_SECONDS,
            finish_timeout_raises=True,
        ),
    )
    try:
        logged.define_metric("step")
        logged.define_metric("*", step_metric="step")

        def show(events: list[Recorded]) -> None:
            for point in run.new_points(events):
                logged.log({"step": point.step, **point.values})

        yield show
    finally:
        logged.finish(exit_code=int(run.state == "failed"))
