"""Prediction on records with labels and without, through the zoo's own parsers."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from edl_horovod.models import zoo
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.records.sources.recordio import Writer
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    from edl_horovod.frameworks.keras.batches import KerasBatches
    from edl_horovod.frameworks.keras.model import KerasModel

ZOO = Path(__file__).parents[3] / "model_zoo"
MODELS = ("mnist_functional_api", "mnist_subclass", "cifar10_functional_api", "cifar10_subclass")


def write_pictures(folder: Path, prepare, *, subfolder: str) -> str:
    """A RecordIO file of pictures; the name of their folder is their label, or none."""
    (folder / subfolder).mkdir(parents=True)
    random = np.random.default_rng(3)
    with Writer(folder / "pictures.recordio") as writer:
        for number in range(6):
            path = folder / subfolder / f"{number}.png"
            pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            PIL.Image.fromarray(pixels).save(path)
            writer.write(prepare(str(path)))
    return str(folder / "pictures.recordio")


@pytest.mark.long(after=1)
@pytest.mark.parametrize("name", MODELS)
def test_labels_in_the_records_do_not_matter(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    loaded = zoo.load_spec(str(ZOO), name, params={})
    prepare = loaded.module.prepare_data_for_a_single_file
    outputs = []
    for subfolder in ("7", "unsorted"):
        data = write_pictures(tmp_path / subfolder, prepare, subfolder=subfolder)
        index = Index.open(data)
        plan = DataPlan(
            block_starts=index.block_starts,
            block_counts=index.block_counts,
            global_batch=4,
            num_lanes=2,
            is_shuffled=False,
        )
        with Reader(index) as reader:
            stream = KerasBatches(reader, plan, loaded, Mode.PREDICTION, prefetch=1)
            if not outputs:
                model = KerasModel(loaded, stream.element_spec[0])
            prediction = model.prediction(stream.element_spec)
            stream.restart(range(2), 0, plan.steps_per_epoch)
            predicted = prediction.outputs(stream.next_batch().features)
            outputs.append(prediction.arrays(predicted)["output"])
    assert outputs[0].shape == (4, 10)
    np.testing.assert_array_equal(outputs[0], outputs[1])
