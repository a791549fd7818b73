"""Model files of Keras 2 and of ElasticDL on Keras 3: layers, columns, tensor functions."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras import keras_2
    from edl_horovod.frameworks.keras.elasticdl import preprocessing as layers
    from edl_horovod.frameworks.keras.elasticdl.embeddings import Embedding, SparseEmbedding
    from edl_horovod.frameworks.keras.elasticdl.feature_columns import (
        concatenated_categorical_column,
        embedding_column,
    )

    keras_2.install()
    columns = tf.feature_column
WORDS = ["A", "B", "C"]


def sparse(rows):
    return tf.ragged.constant(rows).to_sparse()


@pytest.mark.parametrize(
    ("layer", "values", "expected"),
    [
        (later("layers.Normalizer(3.0, 4.0)"), [[3.0], [5.0], [7.0]], [[0.0], [0.5], [1.0]]),
        (later("layers.Discretization([30, 45])"), [[19], [42], [55]], [[0], [1], [2]]),
        (later("layers.Discretization([20.0, 30.0])"), [[20.0, 19.9, 30.0]], [[1, 0, 2]]),
        (
            later("layers.LogRound(16, base=2)"),
            [[1.2], [1.6], [0.2], [3.1], [100]],
            [[0], [1], [0], [2], [7]],
        ),
        (later("layers.LogRound(3, default_value=2)"), [[0.0, -1.0, 1e9]], [[2, 2, 2]]),
        (
            later("layers.RoundIdentity(6)"),
            [[1.2], [1.6], [0.2], [9.0], [-1.0]],
            [[1], [2], [0], [0], [0]],
        ),
        (
            later("layers.Hashing(3)"),
            [["A"], ["B"], ["C"], ["D"], ["E"]],
            [[1], [0], [1], [1], [2]],
        ),
        (later("layers.IndexLookup(WORDS)"), [["A"], ["B"], ["C"], ["D"]], [[0], [1], [2], [3]]),
        (later("layers.ToNumber(tf.float32, 7)"), [["1.5"], [""]], [[1.5], [7.0]]),
        (later('layers.ToNumber("int64", 0)'), [[1.9]], [[1]]),
    ],
)
def test_a_preprocessing_layer(layer, values, expected):
    dense = tf.constant(values)
    np.testing.assert_allclose(layer(dense), expected)
    of_sparse = layer(tf.sparse.from_dense(dense)) if dense.dtype == tf.string else None
    if of_sparse is not None:
        assert isinstance(of_sparse, tf.SparseTensor)
    of_ragged = layer(tf.RaggedTensor.from_tensor(dense))
    np.testing.assert_allclose(of_ragged.to_tensor(), expected)


def test_an_integer_hashes_as_its_text():
    hashing = layers.Hashing(1000)
    np.testing.assert_array_equal(
        hashing(tf.constant([[12], [3]])), hashing(tf.constant([["12"], ["3"]]))
    )


def test_a_vocabulary_of_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("A\nB\n")
    lookup = layers.IndexLookup(str(path), num_oov_tokens=2)
    assert lookup.vocab_size() == 4
    assert lookup(tf.constant([["B"]])).numpy().tolist() == [[1]]
    with pytest.raises(UserCodeError, match="Received: 'A'"):
        layers.IndexLookup(["A", "B", "A"])


def test_what_is_missing_is_left_out():
    words = layers.ToSparse()(tf.constant([["A", ""], ["B", "C"]]))
    assert words.values.numpy().tolist() == [b"A", b"B", b"C"]
    assert words.indices.numpy().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert layers.ToSparse()(tf.constant([[1], [-1]])).values.numpy().tolist() == [1]
    assert layers.ToRagged()(tf.constant([["1,2,3"], ["4,5"], [""]])).to_list() == [
        [b"1", b"2", b"3"],
        [b"4", b"5"],
        [],
    ]
    assert layers.ToRagged()(tf.constant([[1], [-1], [4]])).to_list() == [[1], [], [4]]


def test_ids_are_joined_with_offsets():
    join = layers.ConcatenateWithOffset([0, 10])
    joined = join([tf.constant([[1], [1]]), tf.constant([[2], [3]])])
    assert joined.numpy().tolist() == [[1, 12], [1, 13]]
    of_sparse = join([sparse([[1], []]), sparse([[2], [3]])])
    assert tf.sparse.to_dense(of_sparse).numpy().tolist() == [[1, 12], [0, 13]]


@pytest.mark.parametrize(("combiner", "by"), [("sum", 1), ("mean", 2), ("sqrtn", 2**0.5)])
def test_vectors_of_sparse_ids_are_combined_and_their_gradient_is_of_rows(combiner, by):
    layer = SparseEmbedding(5, 2, combiner=combiner)
    ids = sparse([[1, 3], []])
    with tf.GradientTape() as tape:
        vectors = layer(ids)
    table = layer.embeddings.numpy()
    np.testing.assert_allclose(vectors, [(table[1] + table[3]) / by, [0, 0]], rtol=1e-6)
    assert isinstance(tape.gradient(vectors, layer.embeddings.value), tf.IndexedSlices)
    np.testing.assert_allclose(layer(tf.RaggedTensor.from_sparse(ids)), vectors)


def test_an_embedding_without_a_size_says_what_is_missing():
    with pytest.raises(UserCodeError, match="input_dim"):
        Embedding(output_dim=3, mask_zero=True)
    layer = Embedding(3, input_dim=4, mask_zero=True)
    assert layer(tf.constant([[0, 2]])).shape == (1, 2, 3)
    assert layer.compute_mask(tf.constant([[0, 2]])).numpy().tolist() == [[False, True]]


def test_feature_columns_make_a_dense_tensor_in_the_order_of_their_names():
    place = columns.categorical_column_with_identity("place", 4)
    kind = columns.categorical_column_with_vocabulary_list("kind", WORDS)
    age = columns.bucketized_column(columns.numeric_column("age"), [10, 20])
    joined = concatenated_categorical_column([place, kind, age])
    assert joined.num_buckets == 10
    layer = tf.keras.layers.DenseFeatures(
        [
            columns.numeric_column("zeta"),
            columns.indicator_column(joined),
            embedding_column(kind, dimension=2),
        ]
    )
    features = {
        "zeta": tf.constant([0.5, 1.5]),
        "place": tf.constant([[1], [3]]),
        "kind": tf.constant([["C"], ["?"]]),
        "age": tf.constant([[5.0], [25.0]]),
    }
    table = None
    with tf.GradientTape() as tape:
        outputs = layer(features)
    (weight,) = layer.trainable_weights
    table = weight.numpy()
    assert outputs.shape == (2, 13)
    expected_ids = np.zeros((2, 10))
    expected_ids[0, [1, 6, 7]] = 1
    expected_ids[1, [3, 9]] = 1
    by_names = {"kind_embedding": slice(0, 2), joined.name: slice(2, 12), "zeta": slice(12, 13)}
    if joined.name < "kind_embedding":
        by_names = {joined.name: slice(0, 10), "kind_embedding": slice(10, 12)}
    np.testing.assert_allclose(outputs[:, by_names["kind_embedding"]], [table[2], [0, 0]])
    np.testing.assert_allclose(outputs[:, by_names[joined.name]], expected_ids)
    np.testing.assert_allclose(outputs[:, 12], [0.5, 1.5])
    assert isinstance(tape.gradient(outputs, weight.value), tf.IndexedSlices)


def test_a_functional_model_of_columns_trains():
    inputs = {
        "age": keras.Input((1,), name="age"),
        "kind": keras.Input((1,), name="kind", dtype=tf.string),
    }
    kind = columns.categorical_column_with_hash_bucket("kind", 8)
    dense = tf.keras.layers.DenseFeatures(
        [columns.numeric_column("age"), columns.embedding_column(kind, 3)]
    )(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(dense))
    ages = tf.constant([[1.0], [2.0], [3.0], [4.0]])
    features = {"age": ages, "kind": tf.constant([["a"], ["b"]] * 2)}
    model.compile("adam", "mse")
    before = [value.copy() for value in model.get_weights()]
    model.fit(features, ages, verbose=0)
    assert all((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))


def test_functions_of_tensorflow_take_symbolic_tensors():
    x = keras.Input((4,))
    parts = [keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")(x) for _ in range(3)]
    stacked = tf.reshape(parts, (-1, 6))
    joined = tf.concat([stacked, tf.cast(x > 0, tf.float32)], 1)
    total = tf.reduce_sum(joined, axis=1, keepdims=True)
    backend = tf.keras.backend.sum(tf.keras.backend.square(x), axis=1)
    outputs = {"total": tf.sigmoid(total - 10.0), "squares": tf.reshape(backend, (-1,))}
    # Keras calls a product with a number sparse.
    outputs["half"] = tf.reduce_sum(0.5 * stacked, axis=1)
    values = keras.Model(x, outputs)(np.float32([[1, -1, 1, 1]]))
    np.testing.assert_allclose(values["total"], [[1 / (1 + np.exp(10 - 12 - 3))]], rtol=1e-5)
    np.testing.assert_allclose(values["squares"], [4.0])
    np.testing.assert_allclose(values["half"], [6.0])


def test_sparse_tensors_pass_between_the_layers_of_a_model():
    words = keras.Input((1,), name="words", dtype=tf.string)
    numbers = keras.Input((1,), name="numbers")
    ids = layers.ConcatenateWithOffset([0, 4])(
        [
            layers.IndexLookup(WORDS)(layers.ToSparse()(words)),
            layers.Discretization([1.0, 2.0])(layers.ToSparse()(numbers)),
        ]
    )
    vectors = SparseEmbedding(7, 2, combiner="sum")(ids)
    model = keras.Model({"words": words, "numbers": numbers}, vectors)
    table = model.weights[0].numpy()
    outputs = model({"words": tf.constant([["B"], [""]]), "numbers": tf.constant([[1.5], [9.0]])})
    np.testing.assert_allclose(outputs, [table[1] + table[5], table[6]], rtol=1e-6)


def test_the_only_input_is_called_as_the_only_feature_is():
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Dense(1, kernel_initializer="ones")(x))
    keras_2.install()  # Its filters of warnings end with each test.
    keras_2.name_only_input(model, {"image": tf.TensorSpec((None, 2))})
    np.testing.assert_allclose(model({"image": tf.constant([[1.0, 2.0]])}), [[3.0]])
    with pytest.raises(ValueError, match="image"):
        model({"other": tf.constant([[1.0, 2.0]])})


def test_a_layer_of_another_keras_is_refused():
    from tensorflow.python.keras import layers as private

    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = private.Dense(1)

    with pytest.raises(UserCodeError, match=r"dense .*Mine"):
        keras_2.require_keras_3(Mine(), "mine")
