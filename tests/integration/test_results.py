"""What a trained model does afterwards: evaluated and predicted on a ring, as one process would."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.data.recordio import Reader
from tests.records import write_records

NUM_RECORDS, BATCH = 200, 16
PREDICT_CODE = """
import json, sys
import keras, numpy as np, tensorflow as tf
from edl_horovod.data.recordio import Reader

model = keras.models.load_model(sys.argv[1] + "/model.keras", compile=False)
with Reader.open(sys.argv[2]) as reader:
    records = list(reader)
spec = {"x": tf.io.FixedLenFeature([4], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}
parsed = tf.io.parse_example(records, spec)
outputs = model.predict({"x": parsed["x"]}, verbose=0)
model.compile(loss="mse", metrics=["mae"])
loss, mae = model.evaluate({"x": parsed["x"]}, parsed["y"], verbose=0)
outputs_given = []
if len(sys.argv) > 3:
    with Reader.open(sys.argv[3]) as reader:
        spec = {"id": tf.io.FixedLenFeature([1], tf.int64),
                "output": tf.io.FixedLenFeature([1], tf.float32)}
        given = tf.io.parse_example(list(reader), spec)
        outputs_given = given["output"].numpy()[:, 0].tolist()
        ids = given["id"].numpy()[:, 0].tolist()
        assert ids == list(range(len(records))), ids
print(json.dumps({"outputs": outputs[:, 0].tolist(), "given": outputs_given,
                  "loss": loss, "mae": mae}))
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("data"), NUM_RECORDS)


@pytest.fixture
def model(start, data, tmp_path):
    output = tmp_path / "model"
    start(
        "train", "model_def=tiny", f"data={data}", f"output={output}", f"train.batch_size={BATCH}",
        "train.epochs=2", "launch.np=1",
    ).succeed()  # fmt: skip
    return output


def in_plain_keras(*arguments):
    """What Keras itself makes of the saved model, in a process of its own."""
    import json
    import subprocess
    import sys

    run = subprocess.run(
        [sys.executable, "-c", PREDICT_CODE, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_evaluate_equals_keras(start, data, model):
    job = start("evaluate", f"trained_model={model}", f"data={data}", "launch.np=2").succeed()
    expected = in_plain_keras(model, data)
    metrics = job.events("job")[-1]["metrics"]
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-4)
    np.testing.assert_allclose(metrics["absolute_error"], expected["mae"], rtol=1e-4)


def test_predict_gives_one_output_a_record_in_order(start, data, model, tmp_path):
    start("predict", f"trained_model={model}", f"data={data}", "launch.np=3").succeed()
    result = in_plain_keras(model, data, tmp_path / "out")
    np.testing.assert_allclose(result["given"], result["outputs"], rtol=1e-4, atol=1e-6)


def test_predict_into_one_file(start, data, model, tmp_path):
    output = tmp_path / "all.recordio"
    job = start("predict", f"trained_model={model}", f"data={data}", f"output={output}")
    job.succeed()
    with Reader.open(str(output)) as reader:
        assert reader.num_records == NUM_RECORDS


def test_predict_survives_a_kill(start, tmp_path, model):
    data = write_records(tmp_path / "much", 40_000, chunk_bytes=1 << 16)
    settings = [f"trained_model={model}", f"data={data}", "train.batch_size=8", "launch.np=2"]
    job = start("predict", *settings)
    job.wait_for(lambda found: any(e["kind"] == "progress" for e in found), "some progress")
    os.kill(job.worker_pid(1), signal.SIGKILL)
    job.succeed()
    done = [e["records"] for e in job.events("progress")]
    assert done == sorted(set(done)), "a completed segment was done again"
    result = in_plain_keras(model, data, tmp_path / "out")
    assert len(result["given"]) == 40_000
    np.testing.assert_allclose(result["given"], result["outputs"], rtol=1e-4, atol=1e-6)


def test_a_model_predicts_without_its_zoo(start, data, tmp_path):
    import shutil

    zoo = shutil.copytree(Path(__file__).parents[1] / "zoo", tmp_path / "zoo")
    output = tmp_path / "model"
    start(
        "train", "model_def=tiny", f"model_zoo={zoo}", f"data={data}", f"output={output}",
        f"train.batch_size={BATCH}",
    ).succeed()  # fmt: skip
    shutil.rmtree(zoo)
    moved = output.rename(tmp_path / "elsewhere")
    start("predict", f"trained_model={moved}", f"data={data}").succeed()
    with Reader.open(str(tmp_path / "out")) as reader:
        assert reader.num_records == NUM_RECORDS
