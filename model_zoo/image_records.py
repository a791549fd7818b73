"""What the image classifiers of this zoo share: everything but the model itself."""

from pathlib import Path

import keras
import numpy as np
import PIL.Image
import tensorflow as tf

from edl_horovod import ElasticDLSpec, Mode


def label_of(filename):
    """The class of an image is the name of its folder; None where that is not a whole number."""
    folder = Path(filename).parent.name
    return int(folder) if folder.isdecimal() else None


def record_from_image(filename, *, shape):
    """A serialized tf.Example: the pixels, 0 to 255, and the label if the folder gives one."""
    with PIL.Image.open(filename) as image:
        image = image.convert("RGB" if len(shape) == 3 else "L")
        height, width = shape[:2]
        if image.size != (width, height):
            image = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.float32)
    feature = {"image": tf.train.Feature(float_list=tf.train.FloatList(value=pixels.ravel()))}
    label = label_of(filename)
    if label is not None:
        feature["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(
        deterministic=True
    )


class ImageClassifierSpec(ElasticDLSpec):
    """Classifies `record_from_image` records; a subclass sets the shape and makes the model."""

    image_shape = ()

    def create_dataset(self, dataset, mode):
        description = {"image": tf.io.FixedLenFeature(self.image_shape, tf.float32)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)

        def parse(record):
            example = tf.io.parse_single_example(record, description)
            features = {"image": example["image"] / 255.0}
            if mode == Mode.PREDICTION:
                return features
            return features, tf.cast(example["label"], tf.int32)

        dataset = dataset.map(parse)
        return dataset if mode == Mode.PREDICTION else dataset.shuffle(1024)

    def create_loss(self, outputs=None, labels=None):
        labels = tf.reshape(labels, [-1])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))

    def create_optimizer(self, lr=0.001):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, mode=Mode.TRAINING, outputs=None, labels=None):
        if mode != Mode.EVALUATION:
            return {}
        predicted = tf.argmax(outputs, axis=1, output_type=tf.int32)
        is_right = tf.equal(predicted, tf.reshape(labels, [-1]))
        return {"accuracy": tf.reduce_mean(tf.cast(is_right, tf.float32))}
