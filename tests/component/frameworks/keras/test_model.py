"""A Keras model as the files of a trained model hold it."""

from types import SimpleNamespace

from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.model import KerasModel, by_name

    class NoConfig(keras.Model):
        def call(self, inputs):
            return inputs

        def get_config(self):
            raise NotImplementedError("get_config")


def test_variables_of_one_path_get_numbers_and_each_is_there_once():
    variables = [SimpleNamespace(path=path, value=object()) for path in ("a", "b", "a", "a")]
    assert list(by_name([*variables, variables[0]])) == ["a", "b", "a:1", "a:2"]


def test_a_model_that_keras_cannot_save_is_left_out_with_a_warning(tmp_path, caplog):
    spec = SimpleNamespace(create_model=NoConfig)
    loaded = SimpleNamespace(label="NoConfig", zoo=tmp_path, spec=spec)
    KerasModel(loaded, tf.TensorSpec((None, 4))).save(tmp_path)
    assert not (tmp_path / "model.keras").exists()
    assert "model.keras" in caplog.text
