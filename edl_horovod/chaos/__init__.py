"""Disturb a running job, by a schedule or at random, and measure what that costs."""

from edl_horovod.chaos.disturbance import ActionResult, Cost, Target, cost_of, disturb
from edl_horovod.chaos.schedule import KINDS, Action, parse, random_schedule

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
