"""A launch target: nothing is started, and what would be is written on paper, that is, a file."""

import os

from edl_horovod.launch.local_jobs import LocalJobs
from edl_horovod.launch.target import LaunchTarget
from edl_horovod.supervisor.run import JobResult


class PaperTarget(LaunchTarget):
    takes_options = True

    def plan(self, config):
        return config

    def describe(self, plan, *, check="client", whole=False):
        color = plan.launch.options.get("color", "white")
        return f"{plan.task} on {plan.launch.np} sheets of {color} paper\n"

    def launch(self, plan, *, on_events=None, warm=None):
        with open(os.environ["PAPER"], "w", encoding="utf-8") as stream:
            stream.write(self.describe(plan))
        return JobResult(output=plan.output, job_dir="", steps=0)

    def names(self, job):
        return False

    def jobs(self, place):
        return LocalJobs()
