"""Disturb a running job, by a schedule or at random, and measure what that costs."""

from edl_horovod.chaos.disturbance import ActionResult, Cost, cost_of, disturb
from edl_horovod.chaos.schedule import KINDS, Action, parse, random_schedule
from edl_horovod.chaos.target import Target

__all__ = [
    "KINDS",
    "Action",
    "ActionResult",
    "Cost",
    "Target",
    "cost_of",
    "disturb",
    "parse",
    "random_schedule",
]
