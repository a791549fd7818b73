"""A party's side of a federated training: local rounds on data that no other party sees.

A party is a rank. At the ends of rounds all parties have the same model, so the ring's state,
checkpoints and joins work as in any training; but each party writes files of its own, and only
counts, changes of the model and sums of metrics leave it. FedAvg is B. McMahan et al.,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, and
the outer optimizer is that of S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
algorithms 1 and 2. FedProx is T. Li et al., "Federated Optimization in Heterogeneous Networks",
MLSys 2020.
"""

import hashlib
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from edl_horovod.config.schema import FederatedConfig, JobConfig, LocalConfig
from edl_horovod.errors import ConfigError, DataError, PartyError
from edl_horovod.frameworks.base import CollectiveFailed, Collectives
from edl_horovod.frameworks.values import EvaluationSums, Variable
from edl_horovod.frameworks.world import World
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import CheckpointEvent, EventLog
from edl_horovod.records.plan import DataPlan, Ids
from edl_horovod.records.steps import NO_IDS
from edl_horovod.ring.checkpoint import DamagedFile, read_tensors, write_tensors
from edl_horovod.ring.state import NEVER, first_difference, gathered_texts
from edl_horovod.tasks.local_rounds import Values
from edl_horovod.tasks.privacy import PrivacyAccount
from edl_horovod.tasks.secure_sums import (
    LEAST_PARTIES,
    SecureSums,
    from_limbs,
    name_of,
    to_limbs,
)

log = logging.getLogger(__name__)

OWN_SETTINGS = frozenset(
    {
        *("address", "listen", "local_epochs", "local_steps", "min_parties", "parties", "party"),
        *("privacy", "proximal_mu", "quorum", "round_seconds", "share_metrics", "unencrypted"),
    }
)
"""The settings of `federated` that may differ between the parties of one training."""
_LEADER = 0


def local_config(rounds: FederatedConfig) -> LocalConfig:
    """The settings of local rounds that make a federated training.

    Each round begins with a new inner optimizer, whose state never leaves the party. SGD with a
    rate of 1 as the outer optimizer is FedAvg; `create_outer_optimizer` gives others.
    """
    return LocalConfig(
        steps=max(1, rounds.local_steps),
        replicas=1,
        method="diloco",
        inner_state="reset",
        outer_learning_rate=1.0,
        outer_momentum=0.0,
    )


class PartyRounds:
    """Rounds that go on through the party's own data; implements `local_rounds.RoundPlan`."""

    warmup_steps = 0

    def __init__(self, plan: DataPlan, config: FederatedConfig) -> None:
        """Cut the local steps into rounds.

        Args:
            plan: The plan of the party's records, in steps of its own.
            config: The settings.
        """
        self._num_steps = config.local_steps or config.local_epochs * plan.steps_per_epoch
        num_records = (
            config.local_steps * plan.global_batch
            if config.local_steps
            else config.local_epochs * plan.num_records
        )
        self.plan = replace(
            plan,
            block_starts=np.zeros(1, np.int64),
            block_counts=np.array([num_records]),
            global_batch=num_records,
        )
        """The plan of the job, for which a round is an epoch of one step."""

    def local_steps(self, number: int) -> range:
        """The local steps of a round."""
        return range(number * self._num_steps, (number + 1) * self._num_steps)

    def record_ids(self, number: int, lanes: range) -> Ids:
        """No records: a party has no ledger."""
        return NO_IDS


class Party:
    """This party among the others; implements `local_rounds.Participation`."""

    def __init__(
        self, config: JobConfig, training: str = "", account: PrivacyAccount | None = None
    ) -> None:
        """Begin as a party.

        Args:
            config: The settings of its training.
            training: Distinguishes the training from others of this party.
            account: Counts what the rounds reveal of single records; None without privacy.

        Raises:
            MissingDependency: Secure sums need a package that is not installed.
        """
        self._account = account
        self._config, self._seed = config.federated, config.data_plan.seed
        self.name = config.federated.party
        self.names = [self.name]
        """The parties of the present ring, by rank."""
        self._shared = shared_settings(config)
        self.secure_sums: SecureSums | None = None
        if self._config.secure_sums:
            self.secure_sums = SecureSums(
                self._config.secure_range,
                note=JobDir.of(config).secure_round,
                training=training,
            )

    def contributed(
        self,
        number: int,
        lanes: Sequence[int],
        done: Collection[int],
        collectives: Collectives | None,
    ) -> tuple[list[int], int]:
        """Its lane, if it is drawn, or has computed the round before another party was lost.

        With secure sums it is no lane if a party has sent its part of the round before.
        """
        least_drawn, last_round = 1, NEVER
        if (secure_sums := self.secure_sums) is not None:
            least_drawn, last_round = LEAST_PARTIES, secure_sums.last("round")
        number_drawn = draw(self._seed, number, self.name)
        row = [number_drawn, last_round]
        # All parties call it at the beginning of each round.
        rows = (
            np.array([row])
            if collectives is None
            else collectives.gather_rows(row, "edl.rounds.draws")
        )
        draws = rows[:, 0]
        last_sent = int(rows[:, 1].max())
        # All parties have the same rows, so either all raise here or none, and all skip a round.
        if self.secure_sums is not None:
            self._require_new_sums(number, num_parties=len(rows), last_sent=last_sent)
        if number <= last_sent:
            log.warning(
                "round %d is skipped: parts of its secure sum were sent before a party was lost,"
                " and a second sum over other parties would show the difference",
                number + 1,
            )
            return [], len(rows)
        num_drawn = max(least_drawn, math.ceil(round(self._config.fraction * len(draws), 6)))
        is_drawn = int((draws < number_drawn).sum()) < num_drawn
        return (list(lanes) if is_drawn or done else []), len(draws)

    def takes_step(self, seconds: float) -> bool:
        """Whether the round's time is not over."""
        return not self._config.round_seconds or seconds < self._config.round_seconds

    def begin(self, number: int) -> None:
        """Count what the round will reveal of the party's records.

        Raises:
            EdlError: As for `PrivacyAccount.begin`.
        """
        if self._account is not None:
            self._account.begin(number)

    def weight(self, num_examples: float) -> float:
        """The weight of a party in the mean."""
        return num_examples if self._config.weighting == "examples" else float(num_examples > 0)

    def check(self, number: int, changes: Values, *, weight: float, is_finite: bool) -> None:
        """Refuse to send values that are not finite, or beyond the range of secure sums.

        Raises:
            PartyError: The change of a variable, a loss or a gradient is such a value.
        """
        bad = [name for name, change in changes.items() if not np.isfinite(change).all()]
        if is_finite and not bad:
            if self.secure_sums is not None and weight:
                self._check_range(number, changes, weight, self.secure_sums.value_range)
            return
        values = f"the change of {bad[0]}" if bad else "a loss, a gradient or a learning rate"
        raise PartyError(
            f"In round {number + 1}, {values} of party {self.name!r} is not finite, so it takes no"
            " further part.",
            received={"train.learning_rate": self._shared["train.learning_rate"]},
            hint="Lower train.learning_rate, or look for bad values in the data of this party.",
        )

    def check_evaluation(self, number: int, sums: EvaluationSums) -> None:
        """Refuse to send sums of the validation data that are not finite.

        Raises:
            PartyError: They are not.
        """
        if not np.isfinite(sums.vector).all():
            raise PartyError(
                f"After round {number}, the loss or a metric of the validation data of party"
                f" {self.name!r} is not finite, so it takes no further part.",
                received={"federated.party": self.name},
                hint="Look for bad values in the validation_data of this party.",
            )

    def skips_evaluation(self, number: int, world: World, collectives: Collectives) -> bool:
        """Whether a party has sent its part of a secure sum before; all parties call it.

        Args:
            number: The number of rounds that are done.
            world: The ring.
            collectives: Exchange what each has noted.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if self.secure_sums is None or world.is_alone:
            return False
        sent = collectives.gather_rows([self.secure_sums.last("evaluation")], "edl.evaluate.sent")
        if number > sent.max():
            return False
        log.warning(
            "%s is skipped: parts of its secure sum were sent before a party was lost, and a second"
            " sum over other parties would show the difference",
            name_of("evaluation", number),
        )
        return True

    def secure_evaluation(
        self,
        number: int,
        sums: EvaluationSums,
        secure_sums: SecureSums,
        collectives: Collectives,
    ) -> EvaluationSums | None:
        """The sums over all parties, which all call it; None if too few of them have examples.

        Args:
            number: The number of rounds that are done.
            sums: Those of this party.
            secure_sums: Hide them.
            collectives: Exchange them.

        Raises:
            CollectiveFailed: A member was lost.
            OutputError: As for `SecureSums.masks`.
        """
        has_examples = sums.num_examples > 0
        masks = secure_sums.masks(
            number, contributes=has_examples, collectives=collectives, kind="evaluation"
        )
        if masks is None:
            return None
        masked = masks.add_to(to_limbs(sums.vector))
        return EvaluationSums.of(from_limbs(collectives.sum(masked, "edl.evaluate")))

    def evaluations(
        self, sums: EvaluationSums, world: World, collectives: Collectives
    ) -> dict[str, EvaluationSums]:
        """The sums of the parties that share them, by name; all parties call it.

        Args:
            sums: Those of this party, which are sent only if it shares them.
            world: The ring.
            collectives: Exchange the sums.

        Raises:
            CollectiveFailed: A member was lost.
        """
        rows = np.zeros((world.size, sums.vector.size))
        if self._config.share_metrics:
            rows[world.rank] = sums.vector
        if not world.is_alone:
            rows = collectives.sum(rows, "edl.evaluate.parties")
        names = [self.name] if world.is_alone else self.names
        shared = zip(names, map(EvaluationSums.of, rows), strict=True)
        return {name: of_party for name, of_party in shared if of_party.num_examples}

    def _check_range(self, number: int, changes: Values, weight: float, value_range: float) -> None:
        for name, change in changes.items():
            # Integers are summed as they are.
            largest = 0.0 if change.dtype.kind == "i" else np.abs(change).max(initial=0.0) / weight
            if largest > value_range:
                # The error is told to the other parties, so it does not say how large.
                log.warning("the largest change of %s in a round is %g", name, largest)
                raise PartyError(
                    f"In round {number + 1}, the change of {name} of party {self.name!r} is beyond"
                    " the range of secure sums, so it takes no further part.",
                    received={"federated.secure_range": value_range},
                    hint="Raise federated.secure_range at all parties, scale the features, or lower"
                    " train.learning_rate.",
                )

    def _require_new_sums(self, number: int, *, num_parties: int, last_sent: int) -> None:
        if num_parties < LEAST_PARTIES:
            raise ConfigError(
                f"Secure sums need {LEAST_PARTIES} parties, and the ring has {num_parties}.",
                received={"federated.secure_sums": True},
                hint="Set federated.min_parties to 3 or more at edl federate: then parties wait for"
                " others.",
            )
        if number == 0 and last_sent >= self._config.rounds - 1:
            raise ConfigError(
                "Parties have sent their parts of the secure sums of all rounds of this training"
                " before. They must not be repeated, so the model would stay untrained.",
                received={"federated.rounds": self._config.rounds},
                hint="Begin another training by edl federate in another job_dir, and join it with"
                " the tokens there; or go on from a checkpoint with resume=auto.",
            )

    def check_fits(self, world: World, texts: Sequence[str], collectives: Collectives) -> None:
        """Check that all parties have the same settings, model and metrics.

        All parties call it when a ring has formed. The party that has been there for longest is
        the reference, so that a newcomer cannot end the training of the others.

        Args:
            world: The ring.
            texts: Describe the model and the metrics.
            collectives: Exchange texts.

        Raises:
            ConfigError: The ring is not one of parties; all ranks raise it.
            PartyError: This party differs.
            CollectiveFailed: Another one does, or a member was lost.
        """
        names = gathered_texts(collectives, self.name, "edl.rounds.names")
        # All ranks have the same names, so either all raise here or none.
        if not all(names) or len(set(names)) < len(names):
            raise ConfigError(
                "A federated training has one rank for each party.",
                received={"federated.party": ", ".join(name or "''" for name in names)},
                hint="Start each party by edl party. Without parties, train on one rank.",
            )
        self.names = names
        settings = [f"{key}={value}" for key, value in self._shared.items()]
        difference = first_difference(collectives, [*settings, *texts])
        if difference is None:
            return
        descriptions, others = difference
        reference = descriptions[_LEADER]
        if world.rank in others:
            raise PartyError(
                f"Party {self.name!r} does not fit the others: it has"
                f" {descriptions[world.rank]}, and party {names[_LEADER]!r} has {reference}.",
                hint="Use the same model, settings and version of edl_horovod at all parties. Only"
                " data, paths and these settings of federated may differ: address, local_epochs,"
                " local_steps, privacy, proximal_mu, round_seconds, share_metrics.",
            )
        raise CollectiveFailed(
            f"a party does not fit the others: {', '.join(names[rank] for rank in others)}"
        )


class LocalVariables:
    """The variables of a party that no other party sees, and the file on its disk that keeps them.

    The file has the values after the last round that the party has done. It is replaced as a whole
    after each round.
    """

    def __init__(
        self, variables: Mapping[str, Variable], file: Path, *, training: str, events: EventLog
    ) -> None:
        """Prepare; no file is read or written yet.

        Args:
            variables: The variables by name; none if the parties share all.
            file: The file.
            training: Distinguishes the federated training from others.
            events: Receives an event if the file cannot be written.
        """
        self._variables, self._file = dict(variables), file
        self._training, self._events = training, events

    def restore(self) -> None:
        """Set the variables to the values in the file; without one they keep those of the model.

        Raises:
            ConfigError: The file belongs to another federated training.
            DataError: It cannot be used.
        """
        if not (self._variables and self._file.exists()):
            return
        try:
            tensors, facts = read_tensors(self._file)
        except (OSError, DamagedFile) as error:
            raise self._unusable(str(error)) from error
        if facts["training"] != self._training:
            raise ConfigError(
                f"{self._file} belongs to another federated training.",
                received={"--party-token": self._training or "none"},
                hint="Join that training again, or start over with resume=never overwrite=true.",
            )
        saved, expected = (
            {(name, value.dtype.name, tuple(value.shape)) for name, value in values.items()}
            for values in (tensors, self._variables)
        )
        if difference := sorted(name for name, *_ in saved ^ expected):
            raise self._unusable(f"the variable {difference[0]} in it is not that of the model")
        for name, variable in self._variables.items():
            variable.assign(tensors[name])
        log.info("restored federated.local_variables after round %s", facts["round"])

    def save(self, number: int) -> None:
        """Write the values after a round; if that fails, an event says so and training goes on."""
        if not self._variables:
            return
        values = {name: np.array(variable.numpy()) for name, variable in self._variables.items()}
        facts = {"round": str(number), "training": self._training}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(self._file, values, facts)
        except OSError as error:
            message = f"lacks federated.local_variables: {error}. Training goes on; check the disk"
            log.warning("%s cannot be written: %s", self._file, error)
            self._events.write(CheckpointEvent(state="failed", step=number, message=message))

    def _unusable(self, why: str) -> DataError:
        return DataError(
            f"The party's own variables in {self._file} cannot be used: {why}.",
            hint="Use the same model and federated.local_variables, or restore the file from a"
            " backup. Without the file these variables begin with their first values.",
        )


def local_names(
    patterns: Sequence[str], names: Iterable[str], trained: Iterable[str]
) -> frozenset[str]:
    """The variables that stay at a party.

    Args:
        patterns: The setting federated.local_variables.
        names: The names of the model's variables.
        trained: The names of those that rounds train.

    Raises:
        ConfigError: A pattern matches none, or no trained variable is left for the parties to
            share.
    """
    names, matched = list(names), set[str]()
    for pattern in patterns:
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise ConfigError(
                "No variable of the model has a name that fits federated.local_variables.",
                received={"federated.local_variables": pattern},
                hint=f"The model has {', '.join(names)}.",
            )
        matched.update(matching)
    if matched.issuperset(trained):
        raise ConfigError(
            "federated.local_variables leaves no trained variable for the parties to share.",
            received={"federated.local_variables": ", ".join(patterns)},
            hint=f"Rounds train {', '.join(trained)}.",
        )
    return frozenset(matched)


def draw(seed: int, number: int, party: str) -> int:
    """A party's random number of 63 bits in a round; the parties with the lowest ones train."""
    text = f"{seed}/{number}/{party}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def shared_settings(config: JobConfig) -> dict[str, Any]:
    """The settings that all parties must have in common, by key."""
    train, federated = config.train, asdict(config.federated)
    return {
        "edl_horovod": metadata.version("edl_horovod"),
        "framework": config.framework,
        **{f"federated.{key}": federated[key] for key in federated if key not in OWN_SETTINGS},
        "data_plan.seed": config.data_plan.seed,
        "elastic.join_share": config.elastic.join_share,
        "train.learning_rate": train.learning_rate,
        "train.compression": train.compression,
        "train.evaluate_steps": train.evaluate_steps,
        "train.max_seconds": train.max_seconds,
        **{
            f"train.early_stopping.{key}": value
            for key, value in asdict(train.early_stopping).items()
        },
        "validation_data": "given" if config.validation_data else "none",
    }
