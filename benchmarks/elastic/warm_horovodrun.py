"""Joins of the real job under plain `horovodrun`, where a warm worker takes the launched place."""

from pathlib import Path

from benchmarks.elastic.horovod_events import SURVIVOR, another_name, horovodrun
from benchmarks.elastic.settings import OURS, Run, python
from benchmarks.elastic.table import Line
from benchmarks.ours.elastic_job import job_config
from edl_horovod.config import resolved
from edl_horovod.config.schema import ElasticConfig
from edl_horovod.files.whole_file import write_text
from edl_horovod.job import events
from edl_horovod.job.warm_workers import socket_folder
from edl_horovod.supervisor.processes import Child

__all__ = ["measure"]

MOST_MEDIAN = 0.7


def measure(run: Run) -> list[Line]:
    """Let a host come and go, one warm worker waiting for it each time.

    Args:
        run: Holds the records.

    Raises:
        SideFailed: The job ended, or a join did not show in time.
    """
    place = run.place("warm-horovodrun")
    job_dir = place / "job"
    job_dir.mkdir()
    config = job_dir / "config.yaml"
    resolved.dump(job_config(run.data, job_dir, np=1, elastic=ElasticConfig(max_np=2)), config)
    keeper_command = python("edl_horovod.supervisor.keep_warm", "--config", config, "--slots", 2)
    joins = []
    with run.process(place, keeper_command, name="keep_warm") as keeper:
        _wait_for_warm(run, config, 2, keeper)
        command = horovodrun(place, *python("edl_horovod.worker.shim", "--config", config))
        with run.process(place, command) as child:
            _reset(run, job_dir, 1, 0, child)
            for number in range(run.settings.num_events):
                _wait_for_warm(run, config, 1, keeper)
                num_resets = len(_resets(job_dir))
                write_text(place / "hosts", f"{SURVIVOR}:1\n{another_name(number)}:1\n")
                joins.append(_reset(run, job_dir, 2, num_resets, child))
                num_resets = len(_resets(job_dir))
                write_text(place / "hosts", f"{SURVIVOR}:1\n")
                _reset(run, job_dir, 1, num_resets, child)
    event = "warm join under plain horovodrun"
    detail = "from leaving the ring to the next one, as its rank 0 sees it"
    return [
        Line(event=event, side=OURS, values=tuple(joins), most_median=MOST_MEDIAN, detail=detail)
    ]


def _wait_for_warm(run: Run, config: Path, least: int, keeper: Child) -> None:
    run.wait_for(
        lambda: len(list(socket_folder(config).glob("*.sock"))) >= least or None,
        "warm workers",
        keeper,
    )


def _resets(job_dir: Path) -> list[events.Recorded]:
    return [
        recorded
        for recorded in events.read(job_dir / "events.jsonl")
        if recorded.event.kind == "reset"
    ]


def _reset(run: Run, job_dir: Path, size: int, after: int, child: Child) -> float:
    """Seconds of the first ring of a size after so many resets."""

    def found() -> float | None:
        sizes = [r for r in _resets(job_dir)[after:] if r.event.new_size == size]
        return sizes[0].event.seconds if sizes else None

    return run.wait_for(found, f"a ring of {size}", child)
