"""A framework that does as another one, and lets a test see and change what a training does."""

import sys
from dataclasses import replace
from types import SimpleNamespace

from edl_horovod.config.frameworks import FRAMEWORKS
from tests.specs import with_methods

MODULE = "watched_framework"


def watch(name, framework, monkeypatch, **entry):
    """Let the table of frameworks have a watched one under a name, until the end of the test."""
    watched = WatchedFramework(framework)
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(FRAMEWORK=watched))
    monkeypatch.setitem(FRAMEWORKS, name, replace(FRAMEWORKS[name], module=MODULE, **entry))
    return watched


class WatchedFramework:
    """Forwards everything to a framework."""

    def __init__(self, framework):
        self._framework = framework
        self.methods = {}
        """Methods of the spec that is trained, in place of its own."""
        self.rehearse = lambda step, batch: step.rehearse(batch)
        self.before_step = self.after_step = lambda *_: None
        """Called with the batch of each step, and with what it gave."""
        self.made_step = None
        """The step of the last training."""
        self.plans = []

    def __getattr__(self, name):
        return getattr(self._framework, name)

    def batches(self, source, plan, *arguments, **settings):
        self.plans.append(plan)
        return self._framework.batches(source, plan, *arguments, **settings)

    def step(self, loaded, *arguments, **settings):
        loaded = with_methods(loaded, **self.methods)
        self.made_step = WatchedStep(self._framework.step(loaded, *arguments, **settings), self)
        return self.made_step


class WatchedStep:
    """Forwards everything to the step of a framework."""

    def __init__(self, step, watched):
        self._step, self._watched = step, watched

    def __getattr__(self, name):
        return getattr(self._step, name)

    def rehearse(self, batch):
        self._watched.rehearse(self._step, batch)

    def step(self, batch, **options):
        self._watched.before_step(batch)
        sums = self._step.step(batch, **options)
        self._watched.after_step(sums)
        return sums
