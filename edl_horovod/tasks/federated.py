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
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

import numpy as np

from edl_horovod.config.schema import FederatedConfig, JobConfig, LocalConfig
from edl_horovod.errors import ConfigError, PartyError
from edl_horovod.frameworks.base import CollectiveFailed, Collectives
from edl_horovod.frameworks.world import World
from edl_horovod.records.plan import DataPlan, Ids
from edl_horovod.records.steps import NO_IDS
from edl_horovod.ring.state import first_difference, gathered_texts
from edl_horovod.tasks.local_rounds import Values
from edl_horovod.tasks.privacy import PrivacyAccount

OWN_SETTINGS = frozenset(
    {
        *("listen", "local_epochs", "local_steps", "min_parties", "parties", "party"),
        *("privacy", "proximal_mu", "quorum", "unencrypted"),
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

    def __init__(self, config: JobConfig, account: PrivacyAccount | None = None) -> None:
        """Take part in a training.

        Args:
            config: The settings of the party.
            account: Counts what the rounds reveal of single records; None without privacy.
        """
        self._account = account
        self._config, self._seed = config.federated, config.data_plan.seed
        self.name = config.federated.party
        self._shared = shared_settings(config)

    def contributed(
        self, number: int, lanes: Sequence[int], done: Collection[int], collectives: Collectives
    ) -> tuple[list[int], int]:
        """Its lane, if it is drawn, or has computed the round before another party was lost."""
        number_drawn = draw(self._seed, number, self.name)
        # All parties call it at the beginning of each round.
        draws = collectives.gather_rows([number_drawn], "edl.rounds.draws")[:, 0]
        num_drawn = max(1, math.ceil(round(self._config.fraction * len(draws), 6)))
        is_drawn = int((draws < number_drawn).sum()) < num_drawn
        return (list(lanes) if is_drawn or done else []), len(draws)

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

    def check(self, number: int, changes: Values, *, is_finite: bool) -> None:
        """Refuse to send values that are not finite.

        Raises:
            PartyError: The change of a variable, a loss or a gradient is not finite.
        """
        bad = [name for name, change in changes.items() if not np.isfinite(change).all()]
        if is_finite and not bad:
            return
        values = f"the change of {bad[0]}" if bad else "a loss or a gradient"
        raise PartyError(
            f"In round {number + 1}, {values} of party {self.name!r} is not finite, so it takes no"
            " further part.",
            received={"train.learning_rate": self._shared["train.learning_rate"]},
            hint="Lower train.learning_rate, or look for bad values in the data of this party.",
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
                " data, paths and federated.local_epochs, local_steps, proximal_mu and privacy may"
                " differ.",
            )
        raise CollectiveFailed(
            f"a party does not fit the others: {', '.join(names[rank] for rank in others)}"
        )


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
