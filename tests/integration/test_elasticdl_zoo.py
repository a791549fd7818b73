"""The models that ElasticDL released, as they are, on small data in their formats.

They are not part of this project. `EDL_TEST_ELASTICDL_ZOO=FOLDER/model_zoo` names the zoo in a
checkout of https://github.com/sql-machine-learning/elasticdl.
"""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from edl_horovod.records.chunks import Codec
from edl_horovod.records.sources.recordio import Writer
from tests.records import example

RELEASED = os.environ.get("EDL_TEST_ELASTICDL_ZOO", "")
pytestmark = [
    pytest.mark.further,
    pytest.mark.skipif(not RELEASED, reason="EDL_TEST_ELASTICDL_ZOO names no checkout"),
]
NUM_RECORDS = 96
WORDS = {
    "workclass": [b"Private", b"State-gov", b"?"],
    "education": [b"Bachelors", b"HS-grad"],
    "marital-status": [b"Divorced", b"Never-married"],
    "occupation": [b"Tech-support", b"Sales"],
    "relationship": [b"Wife", b"Husband"],
    "race": [b"White", b"Black"],
    "sex": [b"Female", b"Male"],
    "native-country": [b"United-States", b"Cuba"],
}
NUMBERS = {"age": 80, "capital-gain": 9000, "capital-loss": 5000, "hours-per-week": 70}
FEEDS = '''
import tensorflow as tf

WORDS = {words}
NUMBERS = {numbers}


def census(dataset, mode):
    """The census table, with the names that SQL gives its columns."""
    def parse(record):
        described = {{name: tf.io.FixedLenFeature((1,), tf.string) for name in WORDS}}
        described |= {{name: tf.io.FixedLenFeature((1,), tf.float32) for name in NUMBERS}}
        described["label"] = tf.io.FixedLenFeature([], tf.int64)
        columns = tf.io.parse_single_example(record, described)
        label = columns.pop("label")
        return {{name.replace("-", "_"): column for name, column in columns.items()}}, label
    return dataset.map(parse)


def iris(dataset, mode):
    """A row of a text table: four numbers and a label."""
    def parse(record):
        columns = tf.strings.to_number(tf.strings.split(record, ","))
        return tf.ensure_shape(columns[:-1], (4,)), columns[-1]
    return dataset.map(parse)
'''


def census(random):
    label = random.integers(2)
    words = {name: [random.choice(values)] for name, values in WORDS.items()}
    numbers = {name: [random.random() * top * (1 + label) / 2] for name, top in NUMBERS.items()}
    return example(label=[label], **words, **numbers)


def criteo(random):
    words = {f"C{n}": [b"%x" % random.integers(99)] for n in range(1, 27)}
    numbers = {f"I{n}": [random.integers(99)] for n in range(1, 14)}
    return example(label=[random.integers(2)], **words, **numbers)


def heart(random):
    ints = ["age", "trestbps", "chol", "thalach", "slope", "ca"]
    return example(
        target=[random.integers(2)],
        oldpeak=[random.random()],
        thal=[random.choice([b"fixed", b"normal"])],
        **{name: [random.integers(20, 70)] for name in ints},
    )


def ids(random):
    return example(feature=random.integers(1, 5000, 10), label=[random.integers(2)])


def iris(random):
    return ",".join(map(str, [*random.random(4).round(3), random.integers(3)])).encode()


def jpeg(random):
    stream = io.BytesIO()
    PIL.Image.fromarray(random.integers(0, 255, (250, 250, 3), np.uint8)).save(stream, "jpeg")
    return example(image=[stream.getvalue()], label=[random.integers(1, 10)])


def pixels(*shape):
    def record(random):
        image = random.random(int(np.prod(shape))) * 255
        return example(image=image, label=[random.integers(10)])

    return record


MODELS = {
    "census_dnn_model.census_functional_api": (census,),
    "census_dnn_model.census_sequential": (census,),
    "census_dnn_model.census_subclass": (census,),
    "census_model_sqlflow.dnn.census_functional": (
        census,
        "input_fn=census_dnn_model.census_functional_api.feed",
    ),
    **{
        f"census_model_sqlflow.wide_and_deep.wide_deep_{name}": (census, "input_fn=feeds.census")
        for name in (
            "functional_fc",
            "functional_keras",
            "functional_tensor_interface_fc",
            "functional_tensor_interface_keras",
            "subclass_keras",
        )
    },
    "census_wide_deep_model.wide_deep_functional_api": (census,),
    **{
        f"cifar10.cifar10_{name}": (pixels(32, 32, 3),)
        for name in ("functional_api", "mobilenetv2", "resnet50", "subclass")
    },
    "deepfm_functional_api.deepfm_functional_api": (ids,),
    "heart_functional_api.heart_functional_api": (heart,),
    "mnist.mnist_functional_api": (pixels(28, 28),),
    "mnist.mnist_subclass": (pixels(28, 28),),
    "odps_iris_dnn_model.odps_iris_dnn_model": (iris, "input_fn=feeds.iris"),
}
REFUSED = {
    "dac_ctr.elasticdl_train": (criteo, "deepctr"),
    "deepfm_edl_embedding.deepfm_edl_embedding": (ids, "input_dim"),
    "resnet50_subclass.resnet50_subclass": (jpeg, "tensorflow.python.keras"),
}


@pytest.fixture
def train(start, tmp_path):
    def train(model_def, record, *settings):
        zoo = tmp_path / "model_zoo"
        shutil.copytree(Path(RELEASED), zoo)
        (zoo / "feeds.py").write_text(FEEDS.format(words=list(WORDS), numbers=list(NUMBERS)))
        random = np.random.default_rng(3)
        with Writer(tmp_path / "data.recordio", codec=Codec.NONE, chunk_bytes=4096) as writer:
            for _ in range(NUM_RECORDS):
                writer.write(record(random))
        return start(
            "train",
            f"model_zoo={zoo}",
            f"model_def={model_def}",
            f"data={tmp_path}/data.recordio",
            f"validation_data={tmp_path}/data.recordio",
            f"output={tmp_path}/model",
            "launch.np=1",
            "train.batch_size=32",
            "train.max_steps=3",
            *settings,
        )

    return train


@pytest.mark.parametrize("model_def", MODELS)
def test_a_model_of_elasticdl_trains_and_is_evaluated(train, start, tmp_path, model_def):
    job = train(model_def, *MODELS[model_def]).succeed()
    assert job.events("step")[-1].event.step == 3
    assert job.events("evaluation")
    data = f"data={tmp_path}/data.recordio"
    start("evaluate", f"trained_model={tmp_path}/model", data).succeed()


@pytest.mark.parametrize("model_def", REFUSED)
def test_a_model_of_elasticdl_that_cannot_train_says_why(train, model_def):
    record, why = REFUSED[model_def]
    job = train(model_def, record)
    assert job.process.wait(120) != 0
    assert why in job.printed
    assert "Traceback" not in job.printed
