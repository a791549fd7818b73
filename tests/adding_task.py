"""A task of the tests' own: add a job's records up, each of them a count of 1."""

from edl_horovod.config.tasks import num_lanes
from edl_horovod.frameworks.values import Array
from edl_horovod.job.outcome import Success
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.steps import StepRecords
from edl_horovod.ring.loop import Work
from edl_horovod.ring.state import Counters, RingState


def make_warm(config, framework, events, identity, stack):
    source = stack.enter_context(open_source(config.data, config.data_plan))
    plan = plan_of(
        source,
        config.data_plan,
        global_batch=config.train.batch_size,
        num_lanes=num_lanes(config),
        is_training=False,
    )
    return Adding(source, plan, framework.collectives)


class Adding(Work):
    def __init__(self, source, plan, collectives):
        self._source, self._plan, self._collectives = source, plan, collectives
        self._total = Array([0.0])
        self.state = RingState({"total": self._total}, Counters(), collectives)

    def run(self, world, membership):
        lanes, last = world.lanes(self._plan.num_lanes), self._plan.steps_per_epoch
        records = StepRecords(self._source, self._plan)
        records.restart(lanes, self.state.step, last)
        for number in range(last - self.state.step):
            _, read_records = records.read(records.run_number, number)
            sums = self._total.numpy() * 0 + len(read_records)
            if not world.is_alone:
                sums = self._collectives.sum(sums, "adding")
            self._total.assign(self._total.numpy() + sums)
            self.state.commit()
        return True

    def finish(self, world):
        total = float(self._total.numpy()[0])
        return Success(steps=self.state.step, metrics={"total": total}, output="")
