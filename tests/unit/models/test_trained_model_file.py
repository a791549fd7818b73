import pytest

from edl_horovod.errors import DataError
from edl_horovod.models.trained_model_file import FILE_NAME, read_message
from edl_horovod.proto.trained_model_pb2 import TrainedModel


def test_what_a_trained_model_says_of_itself_is_read(tmp_path):
    message = TrainedModel(model_def="m.M", steps=3)
    (tmp_path / FILE_NAME).write_bytes(message.SerializeToString())
    assert read_message(tmp_path) == message


def test_a_damaged_trained_model_is_named(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xff")
    with pytest.raises(DataError, match=f"{tmp_path} is damaged: {FILE_NAME}"):
        read_message(tmp_path)


def test_a_trained_model_that_is_not_there_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_message(tmp_path)
