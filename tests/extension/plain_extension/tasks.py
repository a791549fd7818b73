"""The task `edl tally`; a test adds `adding_task.py`, which does the work of a rank."""

from edl_horovod.config.tasks import Task

TALLY = Task(
    summary="Count the records.",
    module="plain_extension.adding_task",
    needs=("data",),
    largest_ring=lambda config: 4,
    shared="tallies",
)
