"""A whole job whose layers adapt to its data: once, for all ranks, and for predictions."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from edl_horovod import trained_model
from edl_horovod.records.reader import Reader
from edl_horovod.trained_model.params import read_params
from tests.later import LATER

if LATER:
    from tests.zoo import texts

NUM_RECORDS = 200


@pytest.fixture
def data(tmp_path):
    features, labels = texts.rows(NUM_RECORDS)
    columns = {name: pa.array(list(features[name])) for name in ("text", "city")}
    columns["size"] = pa.array(list(features["size"]), pa.list_(pa.float32(), 2))
    path = tmp_path / "data" / "a.feather"
    path.parent.mkdir()
    feather.write_feather(pa.table({**columns, "y": labels[:, 0]}), str(path), chunksize=50)
    return path


@pytest.mark.further
def test_two_ranks_adapt_once_and_the_trained_model_predicts_with_it(start, data, tmp_path):
    common = ("model_def=texts", "train.batch_size=40", "data_plan.lanes=4", f"data={data}")
    settings = (*common, f"validation_data={data}", "train.epochs=2")
    alone = start("train", *settings, f"output={tmp_path}/alone", "launch.np=1").succeed()
    both = start("train", *settings, f"output={tmp_path}/both", "launch.np=2").succeed()

    assert [job.printed.count("looked at all examples") for job in (alone, both)] == [1, 1]
    adapted = [
        json.loads((tmp_path / name / "adapted.json").read_text()) for name in ("alone", "both")
    ]
    assert adapted[0] == adapted[1]
    assert set(texts.CITIES) < set(adapted[0]["city"]["vocabulary"])
    weights = [
        dict(read_params(trained_model.read(tmp_path / name).params_files))
        for name in ("alone", "both")
    ]
    for name, weight in weights[1].items():
        np.testing.assert_allclose(weight, weights[0][name], rtol=1e-4, atol=1e-6)

    output = tmp_path / "predictions.recordio"
    start("predict", f"trained_model={tmp_path}/both", f"data={data}", f"output={output}").succeed()
    with Reader.open(str(output)) as reader:
        assert len(reader) == NUM_RECORDS
