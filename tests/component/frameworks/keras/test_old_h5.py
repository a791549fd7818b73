"""Models that Keras 2 wrote into HDF5 predict what they predicted, computed here by NumPy."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER, later

if LATER:
    import keras

    from tests.keras_files import (
        arrays,
        close,
        dense,
        file_model,
        layer,
        made,
        predicted,
        sequential,
        write_h5,
    )

RANDOM = np.random.default_rng(0)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def hard_sigmoid(x):
    return np.clip(0.2 * x + 0.5, 0.0, 1.0)


def relu(x):
    return np.maximum(x, 0.0)


def features(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def assert_predicts(tmp_path, config, weights, x, expected, **options):
    """Compare the model that Keras 2 wrote into a file; returns it."""
    model = made(file_model(write_h5(tmp_path / "model.h5", config, weights, **options)))
    close(predicted(model, x), expected)
    return model


def assert_predicts_again(model, tmp_path, x, expected):
    model.save(tmp_path / "again.keras")
    close(predicted(made(file_model(tmp_path / "again.keras")), x), expected)


@pytest.mark.parametrize("encode", [str.encode, str])
@pytest.mark.parametrize("version", ["2.2.4", "2.2.4-tf"])
def test_a_model_of_keras_2_2_and_of_tensorflow_2_1_predicts_what_it_did(tmp_path, version, encode):
    weights = {
        "dense_1": arrays(1, kernel=(4, 3), bias=(3,)),
        "dense_2": arrays(2, kernel=(3, 2), bias=(2,)),
    }
    first = dense("dense_1", 3, activation="relu", batch_input_shape=[None, 4], dtype="float32")
    config = sequential(first, dense("dense_2", 2, activation="hard_sigmoid"))
    x = features(5, 4)
    hidden = relu(x @ weights["dense_1"]["kernel"] + weights["dense_1"]["bias"])
    expected = hard_sigmoid(hidden @ weights["dense_2"]["kernel"] + weights["dense_2"]["bias"])
    written = {"version": version, "encode": encode}
    model = assert_predicts(tmp_path, config, weights, x, expected, **written)
    assert [part.name for part in model.layers] == ["dense_1", "dense_2"]
    assert_predicts_again(model, tmp_path, x, expected)


def test_its_layers_as_a_list_and_those_without_weights_are_read(tmp_path):
    weights = {"dense_1": arrays(1, kernel=(4, 3), bias=(3,)), "dropout_1": {}}
    first = dense("dense_1", 3, batch_input_shape=[None, 4])
    dropout = layer("Dropout", "dropout_1", rate=0.5, noise_shape=None, seed=None)
    config = {"class_name": "Sequential", "config": [first, dropout]}
    x = features(2, 4)
    expected = x @ weights["dense_1"]["kernel"] + weights["dense_1"]["bias"]
    assert_predicts(tmp_path, config, weights, x, expected, version="2.2.0")


def conv(name, filters, size, **settings):
    return layer(
        "Conv2D",
        name,
        filters=filters,
        kernel_size=[size, size],
        strides=[1, 1],
        padding="valid",
        dilation_rate=[1, 1],
        activation="relu",
        use_bias=True,
        kernel_initializer={"class_name": "GlorotUniform", "config": {"seed": None}},
        bias_initializer={"class_name": "Zeros", "config": {}},
        **settings,
    )


def convolved(x, kernel, bias):
    """A valid convolution of (examples, height, width, channels), with relu."""
    size = kernel.shape[0]
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    out = np.zeros((len(x), height, width, kernel.shape[3]))
    for i in range(size):
        for j in range(size):
            out += x[:, i : i + height, j : j + width] @ kernel[i, j]
    return relu(out + bias)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_convolutions_and_old_batch_normalisations(tmp_path, data_format):
    is_last = data_format == "channels_last"
    weights = {
        "conv2d_1": arrays(1, kernel=(3, 3, 2, 4), bias=(4,)),
        "batch_normalization_1": {
            **arrays(2, gamma=(4,), beta=(4,), moving_mean=(4,)),
            "moving_variance": np.array([0.5, 1.0, 1.5, 2.0], np.float32),
        },
    }
    shape = [None, 6, 5, 2] if is_last else [None, 2, 6, 5]
    norm = layer(
        "BatchNormalization",
        "batch_normalization_1",
        axis=[3] if is_last else [1],
        momentum=0.99,
        epsilon=0.001,
        center=True,
        scale=True,
        beta_initializer={"class_name": "Zeros", "config": {"dtype": "float32"}},
        gamma_initializer={"class_name": "Ones", "config": {"dtype": "float32"}},
        moving_mean_initializer={"class_name": "Zeros", "config": {}},
        moving_variance_initializer={"class_name": "Ones", "config": {}},
    )
    first = conv("conv2d_1", 4, 3, data_format=data_format, batch_input_shape=shape)
    flat = layer("Flatten", "flatten_1", data_format=data_format)
    x = features(3, 6, 5, 2)
    hidden = convolved(x, **weights["conv2d_1"])
    bn = weights["batch_normalization_1"]
    scale = bn["gamma"] / np.sqrt(bn["moving_variance"] + 0.001)
    expected = ((hidden - bn["moving_mean"]) * scale + bn["beta"]).reshape(3, -1)
    x = x if is_last else x.transpose(0, 3, 1, 2)
    model = assert_predicts(tmp_path, sequential(first, norm, flat), weights, x, expected)
    assert_predicts_again(model, tmp_path, x, expected)


def lstm_outputs(x, kernel, recurrent, bias, gate):
    h = c = np.zeros((len(x), recurrent.shape[0]))
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, axis=1)
        c = gate(f) * c + gate(i) * np.tanh(g)
        h = gate(o) * np.tanh(c)
    return h


def gru_outputs(x, kernel, recurrent, bias, gate, *, reset_after):
    units = recurrent.shape[0]
    h = np.zeros((len(x), units))
    before, inside = bias if reset_after else (bias, np.zeros(3 * units))
    for t in range(x.shape[1]):
        xz, xr, xh = np.split(x[:, t] @ kernel + before, 3, axis=1)
        if reset_after:
            hz, hr, hh = np.split(h @ recurrent + inside, 3, axis=1)
            z, r = gate(xz + hz), gate(xr + hr)
            new = np.tanh(xh + r * hh)
        else:
            rz, rr, rh = np.split(recurrent, 3, axis=1)
            z, r = gate(xz + h @ rz), gate(xr + h @ rr)
            new = np.tanh(xh + (r * h) @ rh)
        h = z * h + (1 - z) * new
    return h


OUTPUT = dict.fromkeys(("return_sequences", "return_state", "go_backwards", "stateful"), False)


def recurrent(kind, name, units, **settings):
    return layer(
        kind,
        name,
        units=units,
        **OUTPUT,
        unroll=False,
        implementation=1,
        dropout=0.0,
        recurrent_dropout=0.0,
        activation="tanh",
        recurrent_activation="hard_sigmoid",
        use_bias=True,
        **settings,
    )


def test_an_lstm_has_the_hard_sigmoid_of_its_time(tmp_path):
    weights = {"lstm_1": arrays(3, kernel=(3, 16), recurrent_kernel=(4, 16), bias=(16,))}
    first = recurrent("LSTM", "lstm_1", 4, unit_forget_bias=True, batch_input_shape=[None, 6, 3])
    x = features(2, 6, 3)
    expected = lstm_outputs(x, *weights["lstm_1"].values(), hard_sigmoid)
    assert_predicts(tmp_path, sequential(first), weights, x, expected)


@pytest.mark.parametrize("reset_after", [None, False, True])
def test_a_gru_resets_where_it_did(tmp_path, reset_after):
    bias = (2, 12) if reset_after else (12,)
    weights = {"gru_1": arrays(4, kernel=(3, 12), recurrent_kernel=(4, 12), bias=bias)}
    said = {} if reset_after is None else {"reset_after": reset_after}
    first = recurrent("GRU", "gru_1", 4, batch_input_shape=[None, 6, 3], **said)
    x = features(2, 6, 3)
    expected = gru_outputs(
        x, *weights["gru_1"].values(), hard_sigmoid, reset_after=bool(reset_after)
    )
    assert_predicts(tmp_path, sequential(first), weights, x, expected)


def of_cudnn(kernels, num_gates):
    """How CuDNN's layers kept the kernels of their gates: each transposed, its shape as it was."""
    gates = np.split(kernels, num_gates, axis=1)
    return np.concatenate([gate.T.reshape(gate.shape) for gate in gates], axis=1)


@pytest.mark.parametrize(("kind", "num_gates"), [("LSTM", 4), ("GRU", 3)])
def test_the_layers_of_cudnn_become_others(tmp_path, kind, num_gates):
    x, width = features(2, 6, 3), 4 * num_gates
    gates = arrays(5, kernel=(3, width), recurrent_kernel=(4, width), biases=(2, width))
    kernel, inner, biases = gates.values()
    stored = {
        "kernel": of_cudnn(kernel, num_gates),
        "recurrent_kernel": of_cudnn(inner, num_gates),
        "bias": biases.reshape(-1),
    }
    first = layer(f"CuDNN{kind}", "cu_dnn_1", units=4, batch_input_shape=[None, 6, 3], **OUTPUT)
    if kind == "LSTM":
        expected = lstm_outputs(x, kernel, inner, biases.sum(0), sigmoid)
    else:
        expected = gru_outputs(x, kernel, inner, biases, sigmoid, reset_after=True)
    assert_predicts(tmp_path, sequential(first), {"cu_dnn_1": stored}, x, expected)


def test_both_directions_of_a_bidirectional_layer(tmp_path):
    forward = arrays(7, kernel=(3, 16), recurrent_kernel=(4, 16), bias=(16,))
    backward = arrays(8, kernel=(3, 16), recurrent_kernel=(4, 16), bias=(16,))
    stored = {f"forward_lstm_1/{name}": array for name, array in forward.items()}
    stored |= {f"backward_lstm_1/{name}": array for name, array in backward.items()}
    both = layer(
        "Bidirectional",
        "bidirectional_1",
        merge_mode="concat",
        layer=recurrent("LSTM", "lstm_1", 4, num_constants=None),
        batch_input_shape=[None, 6, 3],
    )
    x = features(2, 6, 3)
    expected = [
        lstm_outputs(x, *forward.values(), hard_sigmoid),
        lstm_outputs(x[:, ::-1], *backward.values(), hard_sigmoid),
    ]
    weights = {"bidirectional_1": stored}
    assert_predicts(tmp_path, sequential(both), weights, x, np.concatenate(expected, axis=1))


def functional(layers, inputs, outputs):
    config = {"name": "model_1", "layers": layers, "input_layers": inputs, "output_layers": outputs}
    return {"class_name": "Model", "config": config}


def called(description, *inputs, **keywords):
    """A layer of a functional model, on the outputs of others: (name, call)."""
    nodes = [[[name, call, 0, keywords] for name, call in inputs]] if inputs else []
    return {**description, "name": description["config"]["name"], "inbound_nodes": nodes}


def input_layer(name, *shape):
    return layer(
        "InputLayer", name, batch_input_shape=[None, *shape], dtype="float32", sparse=False
    )


def test_a_functional_model_with_a_model_inside_and_shared_layers(tmp_path):
    weights = {
        "model_0": arrays(1, kernel=(3, 3), bias=(3,)),
        "dense_2": arrays(2, kernel=(6, 2), bias=(2,)),
    }
    inner = sequential(dense("dense_1", 3, activation="tanh", batch_input_shape=[None, 3]))
    inner["config"]["name"] = "model_0"
    # What it is called on first is its own input: the calls count from 1 on.
    shared = {**inner, "name": "model_0"}
    shared["inbound_nodes"] = [[["a", 0, 0, {}]], [["b", 0, 0, {}]]]
    layers = [
        called(input_layer("a", 3)),
        called(input_layer("b", 3)),
        shared,
        called(layer("Concatenate", "both", axis=-1), ("model_0", 1), ("model_0", 2)),
        called(dense("dense_2", 2), ("both", 0)),
    ]
    config = functional(layers, [["a", 0, 0], ["b", 0, 0]], [["dense_2", 0, 0]])
    a, b = features(4, 3), features(4, 3)
    kernel, bias = weights["model_0"].values()
    hidden = [np.tanh(x @ kernel + bias) for x in (a, b)]
    kernel, bias = weights["dense_2"].values()
    expected = np.concatenate(hidden, axis=1) @ kernel + bias
    assert_predicts(tmp_path, config, weights, [a, b], expected)


def test_the_output_of_a_model_inside_a_model_may_be_the_output(tmp_path):
    weights = {"model_0": arrays(1, kernel=(3, 3), bias=(3,))}
    inner = sequential(dense("dense_1", 3, batch_input_shape=[None, 3]))
    inner["config"]["name"] = "model_0"
    layers = [
        called(input_layer("a", 3)),
        {**inner, "name": "model_0", "inbound_nodes": [[["a", 0, 0, {}]]]},
    ]
    config = functional(layers, [["a", 0, 0]], [["model_0", 1, 0]])
    x = features(4, 3)
    expected = x @ weights["model_0"]["kernel"] + weights["model_0"]["bias"]
    assert_predicts(tmp_path, config, weights, x, expected)


def test_an_embedding_takes_its_ids_as_whole_numbers(tmp_path):
    weights = {"embedding_1": arrays(1, embeddings=(7, 2))}
    first = layer(
        "Embedding",
        "embedding_1",
        input_dim=7,
        output_dim=2,
        embeddings_initializer={
            "class_name": "RandomUniform",
            "config": {"minval": -0.05, "maxval": 0.05, "seed": None},
        },
        mask_zero=False,
        input_length=3,
        batch_input_shape=[None, 3],
        dtype="float32",
    )
    ids = np.array([[0, 6, 2]])
    expected = weights["embedding_1"]["embeddings"][ids]
    assert_predicts(tmp_path, sequential(first), weights, ids, expected)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (later('layer("Densse", "d", units=1)'), "Densse.*'d'.*Did you mean 'Dense'"),
        (later('dense("d", 1, kernel_quantizer="x")'), "'d'.*kernel_quantizer='x'"),
        (
            later('layer("BatchNormalization", "n", axis=[1, 2])'),
            r"BatchNormalization.*axis=\[1, 2\]",
        ),
        (later('dense("d", 1, activation="reluu")'), "'reluu'.*Did you mean 'relu'"),
        (
            later('layer("Dense", "d", units=1, kernel_initializer={"class_name": "Zeroes"})'),
            "keras.initializers.*'Zeroes'.*Did you mean 'Zeros'",
        ),
        (later('layer("TFOpLambda", "t", function="math.add")'), "TFOpLambda"),
    ],
)
def test_what_keras_3_cannot_do_alike_is_refused_by_name(tmp_path, first, says):
    path = write_h5(tmp_path / "model.h5", sequential(first), {})
    with pytest.raises(UserCodeError, match=says):
        made(file_model(path))


def test_a_model_that_keras_3_wrote_today_predicts_what_it_did(tmp_path):
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, activation="hard_sigmoid")])
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    both = keras.layers.Concatenate()([inner(a), inner(b)])
    model = keras.Model([a, b], keras.layers.Dense(2)(both))
    model.compile("adam", "mse", metrics=["mae"])
    model.save(tmp_path / "model.h5")
    x = [features(4, 3), features(4, 3)]
    close(predicted(made(file_model(tmp_path / "model.h5")), x), predicted(model, x))
