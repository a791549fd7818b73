import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from edl_horovod.proto.trained_model_pb2 import Model, TrainedModel

ROOT = Path(__file__).parents[3]
FIELD = descriptor_pb2.FieldDescriptorProto


def reference_model_class():
    """The parameters' messages as they were before us: no dtype, nothing of ours."""
    file = descriptor_pb2.FileDescriptorProto(
        name="reference.proto", package="reference", syntax="proto3"
    )
    repeated = FIELD.LABEL_REPEATED
    tensor = file.message_type.add(name="Tensor")
    tensor.field.add(name="dim", number=1, type=FIELD.TYPE_INT32, label=repeated)
    tensor.field.add(name="content", number=2, type=FIELD.TYPE_BYTES)
    model = file.message_type.add(name="Model")
    model.field.add(name="version", number=1, type=FIELD.TYPE_INT32)
    entry_type = ".reference.Model.ParamEntry"
    model.field.add(
        name="param", number=2, type=FIELD.TYPE_MESSAGE, label=repeated, type_name=entry_type
    )
    entry = model.nested_type.add(name="ParamEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_MESSAGE, type_name=".reference.Tensor")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("reference.Model"))


def raw_strings(data: bytes) -> dict[int, str]:
    """Decode a message of nothing but short strings by hand: tag, length, text."""
    strings, place = {}, 0
    while place < len(data):
        tag, length = data[place], data[place + 1]
        assert tag & 7 == 2
        strings[tag >> 3] = data[place + 2 : place + 2 + length].decode()
        place += 2 + length
    return strings


def test_the_seven_strings_of_the_reference_have_its_numbers():
    names = (
        "docker_commit_id model_def model_def_params params_filename input_function loss optimizer"
    )
    message = TrainedModel(**{name: name for name in names.split()})
    assert raw_strings(message.SerializeToString()) == dict(enumerate(names.split(), start=1))


def test_fields_of_ours_start_at_100():
    numbers = [field.number for field in TrainedModel.DESCRIPTOR.fields]
    assert [number for number in numbers if number < 100] == list(range(1, 8))


def test_a_reader_of_the_reference_reads_our_parameters():
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    ours = Model(version=7)
    ours.param["dense/kernel"].dim.extend(values.shape)
    ours.param["dense/kernel"].content = values.tobytes()

    reference = reference_model_class().FromString(ours.SerializeToString())

    tensor = reference.param["dense/kernel"]
    assert reference.version == 7
    assert np.array_equal(np.frombuffer(tensor.content, "<f4").reshape(tensor.dim), values)


def test_the_generated_files_are_those_of_the_proto(tmp_path):
    pytest.importorskip("grpc_tools")
    source = "edl_horovod/proto/trained_model.proto"
    arguments = [f"-I{ROOT}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", source]
    # A process of its own: protoc inside a process that has loaded TensorFlow ends it.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
    for name in ("trained_model_pb2.py", "trained_model_pb2.pyi"):
        generated = tmp_path / "edl_horovod" / "proto" / name
        assert generated.read_text() == (ROOT / "edl_horovod" / "proto" / name).read_text()
