"""What a trained model does afterwards: evaluated and predicted on a ring, as one process would."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from edl_horovod.files import marker
from edl_horovod.records.examples import read_examples
from edl_horovod.records.reader import Reader
from tests.records import write_records
from tests.waiting import wait_until

NUM_RECORDS, BATCH = 200, 16


@pytest.fixture
def data(tmp_path):
    return write_records(tmp_path / "data", NUM_RECORDS)


@pytest.fixture
def model(start, data, shared_folder, framework):
    """A trained model, of all tests; its zoo is gone. The data is the same for each."""
    with shared_folder(f"tiny-{framework}") as folder:
        output, zoo = folder / "model", folder / "zoo"
        if not output.exists():
            shutil.copytree(Path(__file__).parents[1] / "zoo", zoo)
            start(
                "train",
                "model_def=tiny",
                f"model_zoo={zoo}",
                f"data={data}",
                f"output={output}",
                f"job_dir={folder}/job",
                f"train.batch_size={BATCH}",
                "train.epochs=2",
                "launch.np=1",
            ).succeed()
            shutil.rmtree(zoo)
    return output


def by_keras(model, x, y):
    """Outputs, loss and mean absolute error of the saved model by Keras itself."""
    # Here, because most processes that collect these tests need none of it.
    import keras

    keras.backend.clear_session()
    plain = keras.models.load_model(Path(model) / "model.keras", compile=False)
    outputs = plain.predict({"x": x}, verbose=0)[:, 0]
    plain.compile(loss="mse", metrics=["mae"])
    loss, mae = plain.evaluate({"x": x}, y, verbose=0)
    return outputs, loss, mae


def by_hand(model, x, y):
    """The same of what PyTorch saved, by the formula of `torch_tiny`."""
    tensors = load_file(Path(model) / "model.safetensors")
    hidden = np.tanh(x @ tensors["hidden.weight"].T + tensors["hidden.bias"])
    outputs = hidden @ tensors["output.weight"].T + tensors["output.bias"]
    return outputs[:, 0], np.square(outputs - y).mean(), np.abs(outputs - y).mean()


def in_plain(framework, model, data, output=None):
    """What the saved model makes of the data without us, and the outputs in a folder, in order."""

    def parsed(path, **shapes):
        with Reader.open(str(path)) as reader:
            return read_examples(list(reader), shapes)

    examples = parsed(data, x=(4,), y=(1,))
    plain = by_keras if framework == "keras" else by_hand
    outputs, loss, mae = plain(model, examples["x"], examples["y"])
    predicted = []
    if output is not None:
        columns = parsed(output, id=(), output=())
        predicted = columns["output"]
        assert columns["id"].tolist() == list(range(len(outputs)))
    return {"outputs": outputs, "given": predicted, "loss": loss, "mae": mae}


@pytest.mark.long
def test_evaluate_equals_the_framework_alone(start, framework, data, model):
    job = start("evaluate", f"trained_model={model}", f"data={data}", "launch.np=2").succeed()
    expected = in_plain(framework, model, data)
    metrics = job.events("job")[-1].event.metrics
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-4)
    np.testing.assert_allclose(metrics["absolute_error"], expected["mae"], rtol=1e-4)


@pytest.mark.long
def test_predict_gives_one_output_a_record_in_order(start, framework, data, model, tmp_path):
    start("predict", f"trained_model={model}", f"data={data}", "launch.np=3").succeed()
    compared = in_plain(framework, model, data, tmp_path / "out")
    np.testing.assert_allclose(compared["given"], compared["outputs"], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_predict_into_one_file(start, data, model, tmp_path):
    output = tmp_path / "all.recordio"
    job = start("predict", f"trained_model={model}", f"data={data}", f"output={output}")
    job.succeed()
    with Reader.open(str(output)) as reader:
        assert len(reader) == NUM_RECORDS


@pytest.fixture
def slow_model(start, data, tmp_path):
    """A model that is slow to serve until the file of that name is there."""
    output, fast = tmp_path / "slow", tmp_path / "fast"
    start(
        "train",
        "model_def=processed",
        f"data={data}",
        f"output={output}",
        f"params.slow_until={fast}",
        f"train.batch_size={BATCH}",
    ).succeed()
    return output, fast


def wait_for_progress(job, num_segments=1):
    """Wait for so many segments more than there are now."""
    before = len(job.events("progress"))
    job.wait_for(
        lambda events: sum(e.event.kind == "progress" for e in events) >= before + num_segments,
        "progress",
    )


def kill_in_the_final_assembly(job, output):
    """Kill the leader while it puts the output together."""
    pattern = f"{output.name}.partial-*/{marker.NAME}"

    def find():
        assert job.process.poll() is None, job.describe()
        return list(output.parent.glob(pattern))

    partial = wait_until(find, seconds=90, describe=job.describe, pause=0.002)
    leader = int(partial[0].parent.name.split("-")[-2])
    os.kill(leader, signal.SIGSTOP)
    is_in_time = not output.exists()
    os.kill(leader, signal.SIGKILL)
    assert is_in_time, f"the assembly was over too soon\n{job.describe()}"


@pytest.mark.further
def test_predict_survives_all_that_happens_to_its_ring(start, framework, tmp_path, slow_model):
    model, fast = slow_model
    processed = tmp_path / "processed"
    processed.mkdir()
    data = write_records(tmp_path / "much", 40_000, chunk_bytes=1 << 16)
    job = start(
        "predict",
        f"trained_model={model}",
        f"data={data}",
        "train.batch_size=64",
        "launch.np=2",
        PROCESSED=str(processed),
    )
    wait_for_progress(job)
    job.want(3)
    job.wait_for_ring(3)
    wait_for_progress(job)
    for slot in (1, 0):  # A follower, then the leader.
        before = job.generation()
        os.kill(job.worker_pid(slot), signal.SIGKILL)
        job.wait_for(
            lambda events, before=before: any(
                e.event.kind == "generation" and e.event.is_formed and e.event.generation > before
                for e in events
            ),
            "a ring without the lost rank",
        )
        wait_for_progress(job)
    job.wait_for_ring(3, after=before)  # Or nobody would be left after the next kill.
    fast.touch()
    kill_in_the_final_assembly(job, tmp_path / "out")
    job.succeed()

    done = [e.event.records for e in job.events("progress")]
    assert done == sorted(set(done)), f"a completed segment was done again\n{job.describe()}"
    compared = in_plain(framework, model, data, tmp_path / "out")
    assert len(compared["given"]) == 40_000
    np.testing.assert_allclose(compared["given"], compared["outputs"], rtol=1e-4, atol=1e-6)
    assert not list(tmp_path.glob("out.partial*"))
    assert not list(job.job_dir.glob("segments*"))

    lines = [line for path in processed.glob("*.csv") for line in path.read_text().splitlines()]
    by_id = {int(line.partition(",")[0]): float(line.partition(",")[2]) for line in lines}
    assert sorted(by_id) == list(range(40_000)), "the processor missed a record"
    np.testing.assert_allclose(
        [by_id[n] for n in range(40_000)], compared["outputs"], rtol=1e-4, atol=1e-6
    )


@pytest.mark.further
def test_evaluate_survives_a_kill_and_writes_its_metrics(
    start, framework, data, tmp_path, slow_model
):
    model, fast = slow_model
    job = start(
        "evaluate",
        f"trained_model={model}",
        f"data={data}",
        f"output={tmp_path / 'metrics'}",
        "train.batch_size=4",
        "launch.np=2",
    )
    wait_for_progress(job)
    os.kill(job.worker_pid(0), signal.SIGKILL)
    wait_for_progress(job)
    fast.touch()
    job.succeed()
    expected = in_plain(framework, model, data)
    metrics = json.loads((tmp_path / "metrics" / "metrics.json").read_text())
    assert metrics == job.events("job")[-1].event.metrics
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-4)
    np.testing.assert_allclose(metrics["absolute_error"], expected["mae"], rtol=1e-4)


@pytest.mark.further
def test_a_model_predicts_from_an_empty_folder_without_its_zoo(
    start, framework, data, model, tmp_path
):
    fresh = tmp_path / "elsewhere"
    fresh.mkdir()
    shutil.copytree(model, fresh / "model")
    start("predict", "trained_model=model", f"data={data}", "output=new", cwd=fresh).succeed()
    assert json.loads((fresh / "new" / "schema.json").read_text())["num_records"] == NUM_RECORDS
    compared = in_plain(framework, fresh / "model", data, fresh / "new")
    np.testing.assert_allclose(compared["given"], compared["outputs"], rtol=1e-4, atol=1e-6)
