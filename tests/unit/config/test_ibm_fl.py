"""Settings from the files of IBM Federated Learning: what they become, and what is refused."""

from pathlib import Path

import pytest
import yaml

from edl_horovod.cli.main import main
from edl_horovod.config.compose import compose
from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.ibm_fl import settings_of_coordinator, settings_of_party
from edl_horovod.errors import ConfigError
from tests.ibm_fl import AGGREGATOR, PARTY, changed


@pytest.fixture
def write(tmp_path):
    def write_it(name, sections):
        file = tmp_path / name
        file.write_text(yaml.safe_dump(sections))
        return file

    return write_it


def test_the_settings_of_a_coordinator(write):
    settings = settings_of_coordinator(write("agg.yml", AGGREGATOR))
    parties = ["party0", "party1", "party2"]
    federated = {"parties": parties, "quorum": 0.75, "listen": "127.0.0.1:5000"}
    assert settings.values == {"federated": federated}
    assert any("tls_config" in note for note in settings.notes)
    assert any("protocol_handler" in note for note in settings.notes)


def test_the_settings_of_a_party(write, tmp_path):
    settings = settings_of_party(write("agg.yml", AGGREGATOR), write("party.yml", PARTY))
    stopping = {"metric": "accuracy", "mode": "max", "threshold": 0.9, "patience": 4}
    assert settings.values == {
        "data": f"{tmp_path}/data/party0.npz",
        "data_plan": {"columns": ["x_train", "y_train"]},
        "model": {
            "name": "KerasFLModel",
            "path": "ibmfl.model.keras_fl_model",
            "spec": {
                "model_definition": f"{tmp_path}/files/compiled_keras.h5",
                "model_name": "keras-cnn",
            },
        },
        "train": {"batch_size": 16, "learning_rate": 0.01, "early_stopping": stopping},
        "federated": {"rounds": 4, "local_epochs": 2, "weighting": "equal", "round_seconds": 60.0},
    }
    for key in ("aggregator", "connection", "protocol_handler", "max_timeout", "validation_data"):
        assert any(key in note for note in settings.notes), key


def test_what_is_printed_is_a_file_of_settings_and_notes_go_elsewhere(write, tmp_path, capsys):
    files = [str(write("agg.yml", AGGREGATOR)), str(write("party.yml", PARTY))]
    for name, arguments, verb, overrides in (
        ("federation", files[:1], "federate", ["job_dir=j"]),
        ("party", files, "train", ["output=o", "validation_data=v.npz"]),
    ):
        assert main(["import-ibm-fl", *arguments]) == 0
        printed = capsys.readouterr()
        (tmp_path / f"{name}.yaml").write_text(printed.out)
        assert "note: " in printed.err
        config = compose(verb, overrides, files=ConfigFiles(str(tmp_path), name))
        if verb == "federate":
            assert config.federated.least_parties == 3
        else:
            assert config.model["name"] == "KerasFLModel"
            assert config.train.early_stopping.threshold == 0.9


def test_parties_and_fedavg_are_read_as_well(write):
    sections = changed(AGGREGATOR, "fusion.name", "FedAvgFusionHandler")
    for key in ("num_parties", "perc_quorum", "max_timeout", "termination_accuracy"):
        sections = changed(sections, f"hyperparams.global.{key}", None)
    sections = changed(sections, "hyperparams.global.parties", 2)
    sections = changed(sections, "hyperparams.local", None)
    aggregator = write("agg.yml", sections)
    of_party = settings_of_party(
        aggregator,
        write("party.yml", changed(PARTY, "local_training.name", "FedAvgLocalTrainingHandler")),
    )
    federated = {"rounds": 4, "local_epochs": 1, "weighting": "examples"}
    assert of_party.values["federated"] == federated
    assert "train" not in of_party.values
    federated = settings_of_coordinator(aggregator).values["federated"]
    assert federated["parties"] == ["party0", "party1"]
    assert federated["quorum"] == 1.0


def test_the_optimizer_of_fedprox_is_a_proximal_term(write):
    optimizer = {
        "value": "PerturbedGradientDescent",
        "path": "ibmfl.util.fedprox.optimizer",
        "args": {"learning_rate": 0.1, "mu": 0.01},
    }
    options = {"optimizer": optimizer, "loss": "mse"}
    sections = changed(PARTY, "model.spec.compile_model_options", options)
    settings = settings_of_party(write("agg.yml", AGGREGATOR), write("party.yml", sections))
    assert settings.values["federated"]["proximal_mu"] == 0.01
    of_model = settings.values["model"]["spec"]["compile_model_options"]["optimizer"]
    assert of_model == {"value": "SGD", "args": {"learning_rate": 0.1}}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("fusion.name", "KrumFusionHandler", "robust"),
        ("fusion.name", "CoordinateMedianFusionHandler", "robust"),
        ("fusion.name", "FedPlusFusionHandler", "federated.local_variables"),
        ("fusion.name", "GradientAvgFusionHandler", "federated.local_steps=1"),
        ("fusion.name", "PFNMFusionHandler", "matched"),
        ("fusion.name", "CryptoIterAvgFusionHandler", "docs/how-to/federated.md"),
        ("fusion.name", "ID3FusionHandler", "gradients"),
        ("fusion.name", "IterAvgFusionHandlr", "IterAvgFusionHandler"),
        ("fusion", None, "lacks fusion"),
        ("hyperparams.global.rounds", None, "lacks hyperparams.global.rounds"),
        ("hyperparams.global.num_parties", None, "lacks hyperparams.global.num_parties"),
        ("hyperparams.global.rounds", "many", "hyperparams.global.rounds"),
        ("hyperparams.global.max_time", 3, "max_timeout"),
        ("hyperparams.local.training.rho", 3, "hyperparams.local.training.rho"),
        ("hyperparams.local.optimizer.name", "Adam", "hyperparams.local.optimizer.name"),
        ("connection.name", "RabbitMQConnection", "RabbitMQConnection"),
        ("privacy", {"epsilon": 1}, "privacy"),
    ],
)
def test_what_an_aggregator_may_not_say(write, path, value, words):
    file = write("agg.yml", changed(AGGREGATOR, path, value))
    for convert in (settings_of_coordinator, lambda file: settings_of_party(file, file)):
        with pytest.raises(ConfigError, match=words):
            convert(file)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("local_training.name", "FedPlusLocalTrainingHandler", "federated.local_variables"),
        ("local_training.info", {"alpha": 1}, "local_training.info"),
        ("data.info", {"database": "db"}, "database"),
        ("data", None, "lacks data"),
        ("model", None, "lacks model"),
        ("model.name", "SklearnSGDFLModel", "model.name"),
        ("privacy.epsilon", 0.1, "privacy.epsilon"),
        ("protocol_handlr", {}, "protocol_handler"),
    ],
)
def test_what_a_party_may_not_say(write, path, value, words):
    aggregator, party = write("agg.yml", AGGREGATOR), write("p.yml", changed(PARTY, path, value))
    with pytest.raises(ConfigError, match=words):
        settings_of_party(aggregator, party)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yml"):
        settings_of_coordinator(Path(tmp_path, "none.yml"))
