import dataclasses
import json
import os
import resource
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edl_horovod.config.schema import JobConfig, KubernetesConfig
from edl_horovod.errors import ConfigError, DataError, OutputError, UserCodeError
from edl_horovod.models import zoo, zoo_files
from edl_horovod.models.trained_model_file import write_adapted
from edl_horovod.proto.trained_model_pb2 import Model, TrainedModel
from edl_horovod.records.layout import Column
from edl_horovod.trained_model import (
    TrainedModelFiles,
    load_spec,
    naming_versions,
    read,
    require_writable,
    restore_weights,
    write,
)
from edl_horovod.trained_model.params import write_params
from tests.frameworks import NEEDS_KERAS

# The models here are of Keras, whose version is written with them.
pytestmark = [NEEDS_KERAS, pytest.mark.usefixtures("imports_end_with_the_test")]

SPEC = """
from edl_horovod.spec import ElasticDLSpec
from helpers import NAME

class Small(ElasticDLSpec):
    name = NAME
    def create_model(self, hidden_units=()):
        return hidden_units
    def create_dataset(self, dataset, mode): ...
    def create_loss(self, outputs, labels): ...
    def create_optimizer(self, lr=0.1): ...
"""


class FakeVariable:
    def __init__(self, value: np.ndarray):
        self.value, self.shape, self.dtype = value, value.shape, value.dtype

    def numpy(self) -> np.ndarray:
        return self.value

    def assign(self, value: np.ndarray) -> None:
        assert value.dtype == self.dtype
        self.value = value


class FakeModel:
    def __init__(self, **values: Any):
        self.weights = {name: FakeVariable(np.asarray(v)) for name, v in values.items()}

    def values(self) -> list[np.ndarray]:
        return [variable.value for variable in self.weights.values()]

    def save(self, folder: Path) -> None:
        (folder / "model.keras").write_text("keras")


def trained(offset: float = 0) -> FakeModel:
    return FakeModel(
        kernel=np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(offset),
        scale=np.asarray(offset, dtype=np.float32),
        half=np.asarray([1, 2.5], dtype=ml_dtypes.bfloat16),
        seed=np.asarray([1, 2**32 - 1], dtype=np.uint32),
        count=np.zeros((0, 4), dtype=np.int64),
    )


@pytest.fixture
def model_zoo(tmp_path):
    folder = tmp_path / "zoo"
    (folder / "fintech").mkdir(parents=True)
    (folder / "helpers.py").write_text("NAME = 'original'\n")
    (folder / "requirements.txt").write_text("numpy\n")
    (folder / "fintech" / "small.py").write_text(SPEC)
    return folder


@pytest.fixture
def write_model(tmp_path, model_zoo):
    def write_model(
        model: Any = None,
        *,
        metrics: Mapping[str, float] = MappingProxyType({"accuracy": 0.75}),
        columns: Sequence[Column] = (),
        **settings: Any,
    ) -> Path:
        config = JobConfig(
            task="train",
            data="data/*.recordio",
            output=str(tmp_path / "m"),
            model_zoo=str(model_zoo),
            model_def="fintech.Small",
            params={"hidden_units": [10, 100], "lr": 0.5},
        )
        write(
            tmp_path / "m",
            loaded=zoo.load_spec(config.model_zoo, config.model_def, params=config.params),
            model=model or trained(),
            framework=SimpleNamespace(name="keras", packages=("keras", "tensorflow")),
            config=dataclasses.replace(config, **settings),
            metrics=metrics,
            steps=12,
            files=zoo_files.sources(model_zoo),
            columns=columns,
        )
        return tmp_path / "m"

    return write_model


def message_of(path: Path) -> TrainedModel:
    return TrainedModel.FromString((path / "trained_model.pb").read_bytes())


def change_message(path: Path, **fields: str | int | list[str]) -> TrainedModelFiles:
    message = message_of(path)
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    (path / "trained_model.pb").write_bytes(message.SerializeToString())
    return read(path)


def test_what_a_trained_model_holds(write_model):
    path = write_model()
    assert {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()} == {
        ".edl_horovod.json",
        "trained_model.pb",
        "params-00000.pb",
        "model.keras",
        "config.yaml",
        "metrics.json",
        "zoo/helpers.py",
        "zoo/requirements.txt",
        "zoo/fintech/small.py",
    }


def test_the_columns_of_the_training_are_known(write_model):
    columns = (Column("t", "int64", time_type="datetime64[us]"), Column("x", "float32", (None,)))
    assert read(write_model(columns=columns)).columns == columns


def test_a_model_of_a_table_of_an_earlier_version_knows_its_dates(write_model):
    path = write_model()
    assert read(path).columns == ()
    columns = [{"name": "t", "unit": "ms"}, {"name": "age", "unit": ""}, {"name": "d", "unit": "D"}]
    write_adapted(path, {"label": {"name": "y"}, "columns": columns})
    assert {column.name: column.time_type for column in read(path).columns} == {
        "t": "datetime64[ms]",
        "d": "datetime64[D]",
    }
    write_adapted(path, [1, 2])  # Of a model of the user's own.
    assert read(path).columns == ()


def test_the_seven_strings(write_model):
    message = message_of(write_model())
    assert message.docker_commit_id == ""
    assert message.model_def == "fintech.Small"
    assert message.model_def_params == "hidden_units=[10, 100], lr=0.5"
    assert message.params_filename == "params-00000.pb"
    assert message.input_function == "fintech.small.Small.create_dataset"
    assert message.loss == "fintech.small.Small.create_loss"
    assert message.optimizer == "fintech.small.Small.create_optimizer"


def test_the_image_of_the_training_is_named(write_model):
    image = "host/zoo@sha256:" + "ab" * 32
    assert read(write_model(image=image)).message.docker_commit_id == image


def test_settings_and_metrics_come_back(write_model):
    files = read(write_model())
    assert files.metrics == {"accuracy": 0.75}
    assert files.config.params == {"hidden_units": [10, 100], "lr": 0.5}
    assert (files.message.steps, dict(files.message.metrics)) == (12, {"accuracy": 0.75})


def test_parameters_come_back_with_their_types(write_model):
    files = read(write_model())
    model = FakeModel(**{name: np.zeros_like(v.value) for name, v in trained().weights.items()})
    restore_weights(files, model.weights)
    for restored, original in zip(model.values(), trained().values(), strict=True):
        assert np.array_equal(restored, original)


def test_float32_parameters_carry_no_field_of_ours(write_model):
    message = Model.FromString((write_model() / "params-00000.pb").read_bytes())
    assert {name: tensor.dtype for name, tensor in message.param.items()} == {
        "kernel": "",
        "scale": "",
        "half": "bfloat16",
        "seed": "uint32",
        "count": "int64",
    }


def test_the_spec_comes_from_the_copy_of_the_zoo(write_model, model_zoo):
    path = write_model()
    (model_zoo / "helpers.py").write_text("NAME = 'changed'\n")
    (model_zoo / "fintech" / "small.py").unlink()
    loaded = load_spec(read(path))
    assert loaded.spec.name == "original"
    assert loaded.spec.create_model() == [10, 100]
    assert loaded.zoo == path / "zoo"


def test_parameters_are_spread_over_files(tmp_path):
    names = write_params(tmp_path, trained().weights, version=3, max_file_bytes=30)
    sizes = [len(Model.FromString((tmp_path / name).read_bytes()).param) for name in names]
    assert names == ["params-00000.pb", "params-00001.pb"]
    assert sizes == [2, 3]


def test_a_parameter_is_on_the_disk_before_the_next_is_asked_for(tmp_path):
    asked_for: list[int] = []

    class Watched(FakeVariable):
        def numpy(self) -> np.ndarray:
            asked_for.append(sum(file.stat().st_size for file in tmp_path.iterdir()) // 4000)
            return super().numpy()

    weights = {name: Watched(np.zeros(1000, np.float32)) for name in "abc"}
    write_params(tmp_path, weights, version=3)
    assert asked_for == [0, 1, 2]


def test_a_parameter_that_no_file_can_hold_is_refused_by_its_shape():
    large = SimpleNamespace(shape=(1 << 20, 512), dtype=np.dtype(np.float32))
    with pytest.raises(OutputError, match="'table' takes 2147483648"):
        require_writable({"small": FakeVariable(np.zeros(3)), "table": large})


def test_parameters_are_found_under_other_automatic_numbers(write_model):
    first = FakeModel(**{"dense/kernel": np.float32(1), "dense_1/kernel": np.float32(2)})
    model = FakeModel(**{"dense_4/kernel": np.float32(0), "dense_5/kernel": np.float32(0)})
    restore_weights(read(write_model(first)), model.weights)
    assert list(map(float, model.values())) == [1, 2]


def test_parameters_of_another_name_or_shape_are_refused(write_model):
    files, turned = read(write_model()), trained()
    turned.weights["kernel"] = FakeVariable(np.zeros((3, 2), np.float32))
    with pytest.raises(DataError, match=r"kernel.*: bias"):
        restore_weights(files, FakeModel(bias=np.float32(0)).weights)
    with pytest.raises(DataError, match=r"'kernel'.*\(2, 3\).*\(3, 2\)"):
        restore_weights(files, turned.weights)


def test_damaged_parameters_are_named(write_model):
    path = write_model()
    file = path / "params-00000.pb"
    content = file.read_bytes()
    message = Model.FromString(content)
    message.param["kernel"].dim[:] = [4, 4]
    for damaged, said in (
        (content[: len(content) // 2], r"params-00000\.pb .*damaged"),
        (message.SerializeToString(), "damaged: kernel: "),
    ):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=said):
            restore_weights(read(path), trained().weights)
    file.unlink()
    with pytest.raises(DataError, match=r"params-00000\.pb .*missing"):
        read(path)


def test_a_missing_directory_and_another_directory_are_told_apart(tmp_path):
    with pytest.raises(ConfigError, match="no such"):
        read(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"no trained_"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"format_version": 2}, "newer"), ({"framework": "jax"}, r"keras.*'jax'")],
    ids=["a newer format", "another framework"],
)
def test_a_model_that_cannot_be_read_here_is_refused_by_its_name(write_model, fields, said):
    with pytest.raises(DataError, match=said):
        change_message(write_model(), **fields)


def test_another_version_of_keras_is_said_before_anything_fails_for_it(write_model, caplog):
    load_spec(change_message(write_model(), framework_version="2.4.1"))
    assert "keras 2.4.1" in caplog.text


def test_an_error_of_loading_says_which_versions_trained_the_model(write_model):
    files = change_message(
        write_model(), framework_version="2.4.1", tensorflow_version="2.15.0", param_names=["gone"]
    )
    expected = r"keras 2\.4\.1 \(.*tensorflow 2\.15\.0"
    with pytest.raises(DataError, match=expected), naming_versions(files):
        restore_weights(files, trained().weights)


def test_the_same_versions_are_not_said_in_an_error(write_model):
    files = read(write_model())
    assert files.message.tensorflow_version
    with pytest.raises(DataError) as caught, naming_versions(files):
        raise DataError("damaged")
    assert str(caught.value) == "damaged"


def test_metrics_are_plain_json_in_which_what_is_no_number_is_null(write_model):
    path = write_model(metrics={"loss": 0.5, "auc": float("nan")})
    assert json.loads((path / "metrics.json").read_text()) == {"loss": 0.5, "auc": None}
    assert np.isnan(read(path).metrics["auc"])


def test_variables_of_pods_do_not_travel_with_the_model(write_model):
    settings = KubernetesConfig(env={"TOKEN": "s3cr3t"}, namespace="ml")
    path = write_model(kubernetes=settings)
    assert "s3cr3t" not in (path / "config.yaml").read_text()
    assert read(path).config.kubernetes == KubernetesConfig(namespace="ml")


def test_others_may_read_a_trained_model_as_the_umask_says(write_model):
    mask = os.umask(0o022)
    try:
        path = write_model()
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.glob("*.*")} == {0o644}


@pytest.mark.parametrize("name", ["helpers.py", "numpy.py"], ids=["changed", "added"])
def test_code_that_was_changed_after_the_training_is_not_run(write_model, name):
    path = write_model()
    (path / "zoo" / name).write_text("raise AssertionError('was run')\n")
    with pytest.raises(DataError, match=r"trust=changed"):
        load_spec(read(path))


def test_changed_code_that_is_trusted_runs_with_a_warning(write_model, caplog):
    path = write_model()
    load_spec(read(path))
    assert "the code" not in caplog.text
    (path / "zoo" / "helpers.py").write_text("NAME = 'patched'\n")
    # Loaded once a process.
    assert load_spec(read(path), trusts_changes=True).spec.name == "original"
    assert "the code" in caplog.text


def test_a_package_that_is_missing_here_is_named(write_model):
    path = write_model()
    (path / "zoo" / "fintech" / "small.py").write_text(f"import no_such_package\n{SPEC}")
    with pytest.raises(UserCodeError, match=r"_package.*requirements"):
        load_spec(read(path), trusts_changes=True)


@pytest.mark.parametrize("content", [b"", b"\xff\xff"])
def test_a_damaged_trained_model_is_refused(write_model, content):
    path = write_model()
    (path / "trained_model.pb").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        read(path)


def test_an_older_model_is_replaced_only_when_asked(write_model):
    write_model()
    with pytest.raises(OutputError, match="overwrite=true"):
        write_model(trained(1))
    path = write_model(trained(1), overwrite=True)
    model = trained()
    restore_weights(read(path), model.weights)
    assert float(model.weights["scale"].value) == 1


def test_a_failure_while_writing_leaves_the_older_model(write_model):
    path = write_model()

    class FullDisk(FakeModel):
        def save(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="space left"):
        write_model(FullDisk(kernel=np.float32(9)), overwrite=True)
    restore_weights(read(path), trained().weights)
    assert sorted(file.name for file in path.parent.iterdir()) == ["m", "zoo"]


@pytest.mark.parametrize("max_file_bytes", [0, 60, 100])
def test_a_full_disk_leaves_nothing_half_written(write_model, tmp_path, max_file_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, hard))
    try:
        with pytest.raises(OutputError, match="be written"):
            write_model(trained())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["zoo"]


def test_what_of_a_zoo_is_copied(model_zoo):
    skipped = [".git/a.py", "__pycache__/a.py", "env/pyvenv.cfg", "env/a.py", "weights.h5", ".x.py"]
    for name in (*skipped, "conf/a.yaml"):
        (model_zoo / name).parent.mkdir(exist_ok=True)
        (model_zoo / name).write_text("x")
    (model_zoo / "large.json").write_bytes(b" " * ((1 << 20) + 1))
    copied = [file.as_posix() for file in zoo_files.sources(model_zoo)]
    assert copied == ["conf/a.yaml", "fintech/small.py", "helpers.py", "requirements.txt"]


def test_a_zoo_that_holds_trained_models_does_not_copy_them(write_model, model_zoo):
    write_model().rename(model_zoo / "m")
    assert all(file.parts[0] != "m" for file in zoo_files.sources(model_zoo))


@pytest.mark.parametrize("name", ["credentials.txt", "fintech/credentials.py"])
def test_a_link_out_of_the_zoo_is_not_copied(write_model, model_zoo, tmp_path, name):
    (tmp_path / "secret").write_text("password = 'secret'\n")
    (model_zoo / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=rf"'{name}'"):
        write_model()
    assert not (tmp_path / "m").exists()


def test_a_link_within_the_zoo_is_copied_as_the_file(write_model, model_zoo):
    (model_zoo / "again.py").symlink_to("helpers.py")
    copy = write_model() / "zoo" / "again.py"
    assert not copy.is_symlink()
    assert copy.read_text() == "NAME = 'original'\n"


def test_a_zoo_that_is_too_large_is_refused(model_zoo):
    for number in range(51):
        (model_zoo / f"data{number}.json").write_bytes(b" " * (1 << 20))
    with pytest.raises(OutputError, match=r"_zoo=.*files=54"):
        zoo_files.sources(model_zoo)


def test_the_zoo_hash_follows_names_and_contents(model_zoo):
    before = zoo_files.digest(model_zoo, zoo_files.sources(model_zoo))
    (model_zoo / "helpers.py").rename(model_zoo / "helpers2.py")
    renamed = zoo_files.digest(model_zoo, zoo_files.sources(model_zoo))
    (model_zoo / "helpers2.py").rename(model_zoo / "helpers.py")
    assert before != renamed
    assert before == zoo_files.digest(model_zoo, zoo_files.sources(model_zoo))
