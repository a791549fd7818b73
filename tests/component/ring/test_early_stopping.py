"""A training that stops early, and goes on after an interruption as if there had been none."""

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.job import events
from edl_horovod.trained_model.params import read_params

SETTINGS = (
    "train.epochs=20",
    "train.evaluate_steps=2",
    "train.early_stopping.metric=loss",
    "train.early_stopping.min_delta=0.3",
    "train.early_stopping.patience=2",
    "train.early_stopping.restore_best=true",
)


@pytest.mark.long
def test_a_training_stops_and_goes_on_as_if_it_had_not_been_interrupted(train, tmp_path):
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    whole = train(*SETTINGS, held_out, job="whole")
    assert max(whole.losses) < 100
    log = events.read(tmp_path / "whole" / "events.jsonl")
    evaluations = [e for e in log if e.event.kind == "evaluation"]
    best = evaluations[-3]
    assert whole.result.metrics == best.event.metrics
    assert f"at step {best.event.step}" in next(
        e.event.message for e in log if e.event.kind == "log"
    )
    assert trained_model.read(tmp_path / "whole-out").metrics == best.event.metrics

    reported = [e.event.step for e in log if e.event.kind == "step"]
    assert reported[-1] == evaluations[-1].event.step == whole.result.steps
    assert {evaluation.event.step for evaluation in evaluations} <= set(reported)

    # Ended between the best evaluation and the stop.
    train(*SETTINGS, held_out, until=best.event.step + 1)
    second = train(*SETTINGS, held_out, "resume=must")
    assert max(second.losses) == max(whole.losses)
    assert second.result.metrics == pytest.approx(whole.result.metrics, rel=1e-5)
    ours, whole_weights = (
        dict(read_params(trained_model.read(tmp_path / name).params_files))
        for name in ("job-out", "whole-out")
    )
    for name, value in ours.items():
        np.testing.assert_allclose(value, whole_weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_training_stops_when_its_metric_is_good_enough(train, tmp_path):
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    settings = [*SETTINGS[:3], "train.early_stopping.patience=99", held_out]
    whole = train(*settings, job="whole")
    log = events.read(tmp_path / "whole" / "events.jsonl")
    evaluations = [e.event for e in log if e.event.kind == "evaluation"]
    losses = [event.metrics["loss"] for event in evaluations]
    wanted = losses[2]
    ended_by = next(at for at, loss in enumerate(losses) if loss <= wanted)
    threshold = f"train.early_stopping.threshold={wanted!r}"
    ended = train(*settings, threshold, "train.early_stopping.min_delta=99", job="ended")
    assert ended.result.steps == evaluations[ended_by].step < whole.result.steps
    assert ended.result.metrics == evaluations[ended_by].metrics
