"""The settings of a federated training from the files of IBM Federated Learning.

Its aggregator has a file, and so has each party. The keys are those of its document "Aggregator and
Party Configuration" and of its examples. A key that has no meaning here is named in a note; one
that is not known, or that asks for something that is not here, is an error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_horovod.config import model_spec
from edl_horovod.errors import ConfigError, did_you_mean

__all__ = ["Settings", "settings_of_coordinator", "settings_of_party"]

_WEIGHTINGS = {"IterAvgFusionHandler": "equal", "FedAvgFusionHandler": "examples"}
"""`federated.weighting` by the name of the fusion."""
_LOCAL_TRAINING = ("LocalTrainingHandler", "FedAvgLocalTrainingHandler")
_INSTEAD = {
    ("Krum", "Median", "Zeno", "Comparative", "AFA"): "It is a robust fusion, which needs the"
    " change of each party in clear, and here only sums leave a party. federated.weighting=equal"
    " at least lets no party weigh more by its examples.",
    ("Plus", "FedPlus"): "Its personal models are nearest to federated.local_variables, or to"
    " federated.proximal_mu.",
    ("Gradient",): "Use IterAvgFusionHandler or FedAvgFusionHandler with rounds of one step"
    " (federated.local_steps=1): with SGD that is the sum of gradients.",
    ("PFNM", "SPAHM"): "Neurons are not matched here. FedAvgFusionHandler averages the parties.",
    ("Crypto", "FHE", "Shuffle"): "It protects the changes on their way to the aggregator. See"
    " docs/how-to/federated.md for what protects them here.",
    ("RL", "ID3", "DT", "XGB", "NaiveBayes", "KMeans", "Doc2Vec", "Prej"): "It is for models that"
    " are not trained by gradients of a loss, and only those are trained here.",
}
"""What to do instead of a fusion, by words in its name."""
_FEDPROX = "PerturbedGradientDescent"
"""IBM FL's FedProx: an optimizer of Keras with the argument `mu`, which a model's spec names."""
_NO_EFFECT = {
    "protocol_handler": "there is one protocol",
    "metrics_recorder": "the events of each party have its metrics",
}


@dataclass(frozen=True)
class Settings:
    """What a file of settings holds, and what has been left out of it."""

    values: dict[str, Any]
    """Sections and settings."""
    notes: tuple[str, ...]
    """A sentence on each key that has no effect, or another one than in IBM FL."""


def settings_of_coordinator(aggregator: Path) -> Settings:
    """The settings of `edl federate` from the aggregator's file.

    The parties are called party0, party1 and so on, because IBM FL only counts them.

    Raises:
        ConfigError: The file cannot be read, a key of it is not known or missing, or what it asks
            for is not here.
    """
    notes: list[str] = []
    read = _Aggregator(_Section.of(aggregator, notes))
    federated: dict[str, Any] = {
        "parties": [f"party{number}" for number in range(read.num_parties)]
    }
    federated |= {"quorum": read.quorum, "listen": read.listen}
    return Settings({"federated": federated}, tuple(notes))


def settings_of_party(aggregator: Path, party: Path) -> Settings:
    """The settings of `edl party` from the aggregator's file and that of a party.

    Relative paths in the party's file begin at its folder.

    Raises:
        ConfigError: As for `settings_of_coordinator`.
    """
    notes: list[str] = []
    read = _Aggregator(_Section.of(aggregator, []))
    top = _Section.of(party, notes)
    top.drop(
        {
            **_NO_EFFECT,
            "aggregator": "its address is --join of edl party",
            "connection": "a party listens nowhere that its operator chooses",
        }
    )
    privacy = top.section("privacy", is_needed=False)
    privacy.drop({"metrics": "federated.share_metrics=true shows a party's metrics to the others"})
    privacy.end()
    _take_handler(top.section("local_training"), _LOCAL_TRAINING)
    values = _data(top.section("data"), party.parent)
    model, proximal_mu = _model(top.section("model"), party.parent)
    top.end()
    values["model"] = model
    if read.train:
        values["train"] = read.train
    values["federated"] = read.federated
    if proximal_mu:
        values["federated"]["proximal_mu"] = proximal_mu
    if read.max_timeout:
        notes.append(
            "hyperparams.global.max_timeout is federated.round_seconds: a party that is late"
            " contributes what it has, where IBM FL leaves it out."
        )
    if "early_stopping" in read.train:
        notes.append(
            "hyperparams.global.termination_accuracy needs validation_data at each party, and a"
            " metric called accuracy (train.early_stopping.metric)."
        )
    return Settings(values, tuple(notes))


class _Section:
    """The keys and values of one section, each of which is taken, dropped or refused."""

    def __init__(self, values: Mapping[str, Any], name: str, file: Path, notes: list[str]) -> None:
        self._values, self._name, self._file, self._notes = dict(values), name, file, notes
        self._known: list[str] = []

    @classmethod
    def of(cls, file: Path, notes: list[str]) -> "_Section":
        """The top of a file; notes are added to the list."""
        return cls(model_spec.read_mapping(file, str(file)), "", file, notes)

    def section(self, key: str, *, is_needed: bool = True) -> "_Section":
        """A section in this one; empty if it may be left out, and is."""
        values = self.take(key, dict, None if is_needed else {})
        return _Section(values, f"{self._name}{key}.", self._file, self._notes)

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        """The value of a key; it must be there if there is no default."""
        self._known.append(key)
        value = self._values.pop(key, default)
        if kind is float and type(value) is int:
            value = float(value)
        if value is None:
            raise self.error(f"{self._file} lacks {self._name}{key}.", key, value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            problem = f"{self._name}{key} of {self._file} has another type than in IBM FL."
            raise self.error(problem, key, value)
        return value

    def note(self, text: str) -> None:
        """Add a note."""
        self._notes.append(text)

    def rest(self) -> dict[str, Any]:
        """All keys and values that are left."""
        values, self._values = self._values, {}
        return values

    def drop(self, reasons: Mapping[str, str]) -> None:
        """Leave keys out, with a note on each that is there."""
        self._known += reasons
        for key, reason in reasons.items():
            if self._values.pop(key, None) is not None:
                self._notes.append(f"{self._name}{key} of {self._file} has no effect: {reason}.")

    def end(self) -> None:
        """Refuse what is left."""
        for key, value in self._values.items():
            problem = f"{self._file} has a key that is not translated: {self._name}{key}."
            near = did_you_mean(str(key), self._known)
            raise self.error(problem, key, value, f"Leave it out, if the training allows.{near}")

    def error(self, problem: str, key: str, value: Any, hint: str = "") -> ConfigError:
        """An error about the value of a key."""
        return ConfigError(problem, received={f"{self._name}{key}": value}, hint=hint)


class _Aggregator:
    """What the aggregator's file says."""

    def __init__(self, top: _Section) -> None:
        fusion = _take_handler(top.section("fusion"), _WEIGHTINGS)
        self.listen = _take_connection(top)
        reasons = {"model": "the coordinator has no model", "data": "the coordinator has no data"}
        top.drop({**_NO_EFFECT, **reasons})
        hyperparams = top.section("hyperparams")
        of_all, local = hyperparams.section("global"), hyperparams.section("local", is_needed=False)
        hyperparams.end()
        top.end()
        rounds = of_all.take("rounds", int)
        parties = of_all.take("parties", int, 0)
        self.num_parties = of_all.take("num_parties", int, parties or None)
        self.quorum = of_all.take("perc_quorum", float, 1.0)
        self.max_timeout = of_all.take("max_timeout", float, 0.0)
        accuracy = of_all.take("termination_accuracy", float, 0.0)
        of_all.end()
        training = local.section("training", is_needed=False)
        optimizer = local.section("optimizer", is_needed=False)
        local.end()
        self.federated: dict[str, Any] = {
            "rounds": rounds,
            "local_epochs": training.take("epochs", int, 1),
            "weighting": _WEIGHTINGS[fusion],
        }
        if self.max_timeout:
            self.federated["round_seconds"] = self.max_timeout
        self.train: dict[str, Any] = {}
        if batch_size := training.take("batch_size", int, 0):
            self.train["batch_size"] = batch_size
        training.end()
        if rate := optimizer.take("lr", float, 0.0):
            self.train["learning_rate"] = rate
        optimizer.end()
        if accuracy:
            # IBM FL does not end a training that no longer improves.
            stopping = {"metric": "accuracy", "mode": "max", "threshold": accuracy}
            self.train["early_stopping"] = {**stopping, "patience": rounds}


def _take_handler(section: _Section, names: Iterable[str]) -> str:
    """The name in a section with `name` and `path`, of which the path has no effect."""
    name: str = section.take("name", str)
    section.take("path", str, "")
    if name not in names:
        hints = [hint for words, hint in _INSTEAD.items() if any(word in name for word in words)]
        problem = f"There is no {name} here, but {' and '.join(names)}."
        hint = hints[0] if hints else did_you_mean(name, names).strip()
        raise section.error(problem, "name", name, hint)
    section.end()
    return name


def _take_connection(top: _Section) -> str:
    """The address in the section `connection`, as HOST:PORT."""
    connection = top.section("connection")
    name = connection.take("name", str, "FlaskConnection")
    if name != "FlaskConnection":
        problem = f"There is no {name} here: parties connect to the coordinator's address."
        raise connection.error(problem, "name", name, "Write ip and port of a FlaskConnection.")
    connection.take("path", str, "")
    connection.take("sync", bool, False)
    info = connection.section("info")
    connection.end()
    reason = "docs/how-to/federated.md says what is encrypted and authenticated"
    info.drop({"tls_config": reason})
    host, port = info.take("ip", str), info.take("port", int)
    info.end()
    return f"{host}:{port}"


def _data(section: _Section, folder: Path) -> dict[str, Any]:
    """The settings of a party's data."""
    handler = section.take("name", str, "")
    section.take("path", str, "")
    files = section.section("info").rest()
    section.end()
    if len(files) != 1 or not all(key.endswith("_file") for key in files):
        problem = "Only data.info with the path of one file is translated, such as npz_file."
        raise section.error(problem, "info", files, "Write data=... for the party by hand.")
    ((key, path),) = files.items()
    values: dict[str, Any] = {"data": str((folder / path).absolute())}
    if key == "npz_file":
        values["data_plan"] = {"columns": ["x_train", "y_train"]}
    section.note(
        f"data.name: {handler or 'a data handler'} does not run; the arrays of the file are used as"
        " they are. validation_data must be another file whose arrays have the same names."
    )
    return values


def _model(section: _Section, folder: Path) -> tuple[dict[str, Any], float]:
    """The setting `model`, and the mu of FedProx, 0 without."""
    values = section.rest()
    spec: Any = values.get("spec")
    mu = 0.0
    for key in model_spec.COMPILE_KEYS if isinstance(spec, Mapping) else ():
        options = spec.get(key)
        optimizer = options.get("optimizer") if isinstance(options, Mapping) else None
        if isinstance(optimizer, Mapping) and optimizer.get("value") == _FEDPROX:
            arguments = dict(optimizer.get("args", {}))
            mu = float(arguments.pop("mu", 0.0))
            sgd = {"value": "SGD", "args": arguments}
            values["spec"] = {**spec, key: {**options, "optimizer": sgd}}
    model = model_spec.with_spec(values, folder)
    model_spec.check(model)
    return model, mu
