"""What a model reads of its zoo goes with the trained model, and that is proven at the start."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.records.reader import Reader
from tests.records import write_records

ZOO = Path(__file__).parents[1] / "zoo"
MODELS = {
    "keras": '''
class ReadingSpec(TinySpec):
    """A layer that multiplies by a table's numbers."""

    def create_model(self):
        x = keras.Input(shape=(4,), name="x")
        return keras.Model({"x": x}, keras.layers.Dense(1)(x * keras.ops.array(factors())))
''',
    "torch": '''
class Scaled(nn.Linear):
    """A layer that multiplies by a table's numbers."""

    def __init__(self):
        super().__init__(4, 1)
        self.factors = torch.tensor(factors())

    def forward(self, features):
        return super().forward(features["x"] * self.factors)


class ReadingSpec(TorchTinySpec):
    def create_model(self):
        return Scaled()
''',
}
READS = '''
from pathlib import Path

HERE = {here}


def factors():
    return [float(line) for line in (HERE / "factors.csv").read_text().split()]


class PredictionOutputsProcessor:
    """With a table of its own."""

    def process(self, predictions, worker_id):
        bias = float((HERE / "tables" / "bias.tsv").read_text())
        return predictions + bias
'''


@pytest.fixture
def model_zoo(tmp_path, framework):
    def write(here="Path(__file__).parent"):
        zoo = tmp_path / "zoo"
        (zoo / "tables").mkdir(parents=True)
        (zoo / "factors.csv").write_text("1\n2\n3\n4\n")
        (zoo / "tables" / "bias.tsv").write_text("100")
        (zoo / "never.csv").write_text("read by nobody")
        prefix = "" if framework == "keras" else f"{framework}_"
        tiny = (ZOO / f"{prefix}tiny.py").read_text()
        text = tiny + MODELS[framework] + READS.format(here=here)
        (zoo / f"{prefix}reading.py").write_text(text)
        return zoo

    return write


@pytest.fixture
def settings(tmp_path):
    data = write_records(tmp_path / "data", 60)
    return ["model_def=reading.ReadingSpec", f"data={data}", "train.batch_size=20"]


@pytest.mark.long
def test_a_model_that_reads_a_table_predicts_when_the_zoo_is_gone(
    start, model_zoo, settings, tmp_path
):
    zoo = model_zoo()
    (model,) = zoo.glob("*.py")
    job = start("train", f"model_zoo={zoo}", *settings, "launch.np=2").succeed()
    assert "could not be tried" not in job.describe()
    shutil.rmtree(zoo)
    carried = {str(p.relative_to(tmp_path / "out/zoo")) for p in (tmp_path / "out/zoo").rglob("*")}
    assert carried == {"factors.csv", model.name, "tables", "tables/bias.tsv"}
    start(
        "predict",
        f"trained_model={tmp_path / 'out'}",
        settings[1],
        f"output={tmp_path / 'answers'}",
    ).succeed()
    with Reader.open(str(tmp_path / "answers")) as reader:
        assert len(reader) == 60


@pytest.mark.long
@pytest.mark.parametrize("here", ["Path({zoo!r})", "Path('zoo')"])
def test_a_path_that_leads_to_the_zoo_itself_is_refused_before_the_first_step(
    start, model_zoo, settings, tmp_path, here
):
    zoo = model_zoo(here.format(zoo=str(tmp_path / "zoo")))
    job = start("train", f"model_zoo={zoo}", *settings, cwd=tmp_path)
    assert job.end() == UserCodeError.exit_code, job.describe()
    assert f"{zoo}/factors.csv from" in job.printed
    assert job.events("step") == []


@pytest.mark.further
def test_a_model_whose_output_depends_on_a_table_gives_the_same_from_the_copy(
    start, model_zoo, settings, tmp_path
):
    zoo = model_zoo()
    validation = settings[1].replace("data=", "validation_data=", 1)
    trained = start("train", f"model_zoo={zoo}", *settings, validation).succeed()
    shutil.rmtree(zoo)
    scored = start("evaluate", f"trained_model={tmp_path / 'out'}", settings[1]).succeed()
    ours, carried = (job.events("job")[-1].event.metrics for job in (trained, scored))
    np.testing.assert_allclose(ours["loss"], carried["loss"], rtol=1e-6)
