"""Text, a category and a number, by layers of Keras that adapt to all records once."""

import keras
import numpy as np
import tensorflow as tf

from edl_horovod import ElasticDLSpec, Mode

CITIES = ("Bern", "Chur", "Genf", "Zug")
WORDS = ("red", "green", "blue", "old", "new", "fast")
UNADAPTED = {
    "text": lambda **state: keras.layers.TextVectorization(
        max_tokens=6, output_sequence_length=3, **state
    ),
    "city": keras.layers.StringLookup,
    "size": keras.layers.Normalization,
}


def rows(count):
    """Features and labels, as arrays of all examples."""
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(WORDS, size=number % 4)) for number in range(count)]
    cities = random.choice(CITIES, size=count, p=[0.4, 0.3, 0.2, 0.1])
    size = random.normal(30, 8, size=(count, 2)).astype(np.float32)
    features = {
        "text": np.array(texts, dtype=object),
        "city": np.array(cities.tolist(), dtype=object),
        "size": size,
    }
    return features, ((size[:, :1] - 30) / 8).astype(np.float32)


def model_of(layers):
    inputs = {
        "text": keras.Input((), dtype="string", name="text"),
        "city": keras.Input((), dtype="string", name="city"),
        "size": keras.Input((2,), name="size"),
    }
    words = keras.layers.Embedding(7, 4)(layers["text"](inputs["text"]))
    cities = keras.layers.Embedding(6, 3)(layers["city"](inputs["city"]))
    parts = [keras.layers.Flatten()(words), cities, layers["size"](inputs["size"])]
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))


class TextsSpec(ElasticDLSpec):
    def adapt(self, examples, tell):
        layers = {name: make() for name, make in UNADAPTED.items()}
        for name, layer in layers.items():
            layer.adapt(examples.map(lambda features, labels, name=name: features[name]))
        tell("looked at all examples")
        return {
            "text": {"vocabulary": layers["text"].get_vocabulary()},
            "city": {"vocabulary": layers["city"].get_vocabulary()},
            "size": {
                "mean": layers["size"].mean.numpy()[0],
                "variance": layers["size"].variance.numpy()[0],
            },
        }

    def create_model(self):
        return model_of({name: make(**self.adapted[name]) for name, make in UNADAPTED.items()})

    def create_dataset(self, dataset, mode):
        def example(row):
            features = {name: row[name] for name in UNADAPTED}
            return features if mode == Mode.PREDICTION else (features, tf.reshape(row["y"], [1]))

        return dataset.map(example)

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.01):
        return keras.optimizers.SGD(lr, momentum=0.9)
