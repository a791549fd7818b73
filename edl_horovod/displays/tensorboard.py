"""TensorBoard: a job's numbers as scalars in files of events in the job's directory.

The files are written by TensorBoard's own messages and writer of records. Its writers above these
import TensorFlow where it is installed, which takes seconds and memory of the launcher.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.runs import Point, Run
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.job.events import OnEvents, Recorded

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
except ImportError as e:
    raise MissingDependency(
        f"displays=[tensorboard] needs a package that is not installed: {e}.",
        hint=f"To have it, {how_to_install('tensorboard')}.",
    ) from e

_VERSION = "brain.Event:2"


@contextlib.contextmanager
def open_display(config: JobConfig) -> Iterator[OnEvents]:
    """Write a job's numbers; a resumed job adds a file to the same folder, which is one run."""
    run = Run(config, "tensorboard")
    # TensorBoard reads the files of a folder in the order of their names.
    name = (
        f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}"
    )
    with contextlib.closing(RecordWriter((run.folder / name).open("ab"))) as writer:
        writer.write(Event(wall_time=time.time(), file_version=_VERSION).SerializeToString())

        def show(events: list[Recorded]) -> None:
            for point in run.new_points(events):
                writer.write(_message(point).SerializeToString())
            writer.flush()

        yield show


def _message(point: Point) -> Event:
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
    return Event(wall_time=point.time, step=point.step, summary=Summary(value=values))
