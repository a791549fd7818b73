"""Pictures in a folder for each class, as PIL wrote them, numbered as Keras numbers them."""

import os

import numpy as np
import pytest
from PIL import Image

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.as_trained import as_trained, columns_from_json, columns_to_json
from edl_horovod.records.job_data import open_source
from edl_horovod.records.reader import Reader
from tests.columns import read_columns
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

CLASSES = {"dog": 3, "Cat": 2, "ant": 1}


@pytest.fixture
def pictures(tmp_path):
    random = np.random.default_rng(2)
    for name, count in CLASSES.items():
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(count):
            ending = ["png", "JPG", "bmp"][number]
            pixels = random.integers(0, 255, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.{ending}")
    return tmp_path / "train"


def test_a_record_is_a_picture_with_its_class_as_keras_numbers_it(pictures):
    options = {"shuffle": False, "batch_size": None, "image_size": (8, 8)}
    dataset = keras.utils.image_dataset_from_directory(pictures, **options)
    expected = [(pixels.numpy(), int(label)) for pixels, label in dataset]
    columns = read_columns(pictures)
    assert columns["label"] == [label for _, label in expected]
    assert columns["class"] == [dataset.class_names[label].encode() for label in columns["label"]]
    for content, (pixels, _) in zip(columns["image"], expected, strict=True):
        np.testing.assert_array_equal(tf.io.decode_image(content).numpy(), pixels)


def test_globs_and_columns_choose_what_is_read(pictures):
    assert read_columns(f"{pictures}/*/0.png", [2, 0], columns=["label"]) == {"label": [2, 0]}
    with pytest.raises(ConfigError, match=r"'y'.* label, class"):
        read_columns(pictures, columns=["y"])


def test_pictures_without_classes_have_that_of_their_folder(pictures):
    assert read_columns(pictures / "dog")["label"] == [0, 0, 0]


def test_data_beside_folders_with_pictures_is_what_a_folder_means(pictures):
    (pictures / "a.csv").write_text("x\n1\n")
    with Reader.open(str(pictures)) as reader:
        assert list(reader) == [b"1"]


def labels_as_trained(pictures, data, **settings):
    """The labels of pictures for a model that was trained with the classes of others."""
    with open_source(str(pictures), DataConfig()) as source:
        columns = columns_from_json(columns_to_json(source.layout.columns))
    source = open_source(str(data), DataConfig(columns=["label"]))
    with as_trained(columns, source, data=f"data={data}", **settings) as source:
        return source.read(range(sum(source.block_counts)))[0].tolist()


def test_classes_keep_their_numbers_where_others_have_no_picture(pictures):
    assert labels_as_trained(pictures, f"{pictures}/dog/*,{pictures}/Cat/*") == [0, 0, 2, 2, 2]
    assert labels_as_trained(pictures, pictures / "ant") == [1]


def test_classes_that_the_training_did_not_have_are_refused_or_have_no_number(pictures):
    (pictures / "dog").rename(pictures / "wolf")
    trained = f"{pictures}/Cat/*,{pictures}/ant/*"
    with pytest.raises(DataError, match=r"wolf.* 2 .*Cat, "):
        labels_as_trained(trained, pictures)
    labels = labels_as_trained(trained, pictures, needs_classes=False)
    assert labels == [0, 0, 1, -1, -1, -1]


def test_a_file_that_is_not_an_image_is_an_error_or_skipped(pictures):
    for content, said in ((b"not a picture", "BMP"), (b"", "nothing")):
        (pictures / "ant" / "x.png").write_bytes(content)
        with pytest.raises(DataError, match=rf"ant/x\.png .*{said}"):
            read_columns(pictures)
        assert len(read_columns(pictures, damaged="skip")["image"]) == 6


def test_another_class_is_other_data(pictures):
    with Reader.open(str(pictures)) as reader:
        first = reader.fingerprint
    (pictures / "dog").rename(pictures / "wolf")
    with Reader.open(str(pictures)) as reader:
        assert reader.fingerprint != first


def test_a_picture_that_is_rewritten_while_a_job_reads_is_an_error(pictures):
    path = sorted(pictures.rglob("*.*"))[0]
    with Reader.open(str(pictures)) as reader:
        content, before = path.read_bytes(), path.stat()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
        with pytest.raises(DataError, match="changed since"):
            reader.read(range(len(reader)))
