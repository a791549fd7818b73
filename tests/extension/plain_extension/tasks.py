"""The task `edl tally`, as the table of tasks has it."""

from edl_horovod.config.tasks import Task

TALLY = Task(
    summary="Count the records.",
    module="plain_extension.tally",
    needs=("data",),
    largest_ring=lambda config: 4,
    shared="tallies",
)
