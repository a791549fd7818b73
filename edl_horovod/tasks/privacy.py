"""How much privacy a party's training has used up; the account survives the party's restarts.

A step adds Gaussian noise to a sum of gradients, each of which has a norm of at most `clip`. The
data plan has each record in one step of a pass. So for one record a pass is a single release of
the Gaussian mechanism, and passes with the noises s_1, s_2, ... are together one release with the
noise s, where 1 / s^2 = 1 / s_1^2 + 1 / s_2^2 + ... (J. Dong, A. Roth and W. Su, "Gaussian
Differential Privacy", 2019, corollary 3.3). Its delta for an epsilon is theorem 8 of B. Balle and
Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018.

Data sets are neighbours if they are equal, except that the gradients of one record are 0 in one of
them (P. Kairouz et al., "Practical and Private (Deep) Learning without Sampling or Shuffling", ICML
2021, "zero-out"). The random order of the records is not counted as protection.
"""

import math
from collections.abc import Sequence

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import PartyError
from edl_horovod.job import privacy_accounts
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, PrivacyEvent
from edl_horovod.job.privacy_accounts import Spent
from edl_horovod.tasks.local_rounds import RoundPlan

_FAR = -30.0
"""Below it, `_log_cdf` is a series; its error is less than 2e-6 there."""


class PrivacyAccount:
    """Counts the passes over a party's records, and ends the party before its limit.

    A round counts before it is computed. If it is computed again, it counts again, because its
    first result may have been sent.
    """

    def __init__(
        self,
        config: JobConfig,
        rounds: RoundPlan,
        steps_per_pass: int,
        *,
        training: str,
        events: EventLog,
    ) -> None:
        """Prepare; the file is not read yet.

        Args:
            config: The settings of the party, which have `federated.privacy`.
            rounds: The local steps of each round.
            steps_per_pass: Local steps of a pass over all records.
            training: Identifies the federated training; empty for one party alone.
            events: Receives an event for each round.
        """
        self._job_dir, self._events = JobDir.of(config), events
        self._config, self._party = config.federated.privacy, config.federated.party
        self._rounds, self._steps_per_pass = rounds, steps_per_pass
        self._training = training
        self._next_step: int | None = None
        """The local step after the last that this process has counted."""

    def begin(self, number: int) -> None:
        """Count a round that is about to be computed.

        Raises:
            PartyError: It would exceed federated.privacy.max_epsilon.
            JobFailed: The account is damaged.
            OutputError: It cannot be written.
        """
        config, steps = self._config, self._rounds.local_steps(number)
        (spent, others), passes = self._read(), self._passes_begun(steps)
        spent = Spent(
            self._training, spent.passes + passes, spent.mu_squared + passes / config.noise**2
        )
        epsilon = epsilon_of(math.sqrt(spent.mu_squared), config.delta)
        if config.max_epsilon and epsilon > config.max_epsilon:
            raise PartyError(
                f"The epsilon of party {self._party!r} is used up: with round {number + 1} it would"
                f" be {epsilon:.4g} at delta={config.delta:g}, so the party takes no further part.",
                received={"federated.privacy.max_epsilon": config.max_epsilon},
                hint="In another training, take fewer passes or a larger"
                " federated.privacy.noise; or allow this one a larger max_epsilon.",
            )
        with self._job_dir.writing():
            privacy_accounts.write(self._job_dir.privacy, [*others, spent])
        self._next_step = steps.stop
        self._events.write(
            PrivacyEvent(step=number + 1, passes=spent.passes, epsilon=epsilon, delta=config.delta)
        )

    def _read(self) -> tuple[Spent, Sequence[Spent]]:
        """What this training has used up, and other trainings."""
        with self._job_dir.writing():
            trainings = privacy_accounts.read(self._job_dir.privacy)
        spent = [it for it in trainings if it.training == self._training]
        others = [it for it in trainings if it.training != self._training]
        return (spent[0] if spent else Spent(self._training, 0, 0.0)), others

    def _passes_begun(self, steps: range) -> int:
        """The number of passes that local steps begin, or begin again.

        Steps that follow those before, in the same pass, have other records. After a restart it is
        not known which steps were before.
        """
        size, next_step = self._steps_per_pass, self._next_step
        passes = (steps.stop - 1) // size - steps.start // size + 1
        goes_on = (
            next_step is not None
            and steps.start >= next_step
            and steps.start // size == (next_step - 1) // size
        )
        return passes - goes_on


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon of the Gaussian mechanism, rounded up by at most 1e-9 of it.

    Args:
        mu: Sensitivity divided by the standard deviation of the noise; above 0.
        delta: The probability above 0 that epsilon may not hold.
    """
    if delta_of(0.0, mu) <= delta:
        return 0.0
    # At the upper end, the first term of `delta_of` alone is below delta.
    low, high = 0.0, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high


def delta_of(epsilon: float, mu: float) -> float:
    """The delta of the Gaussian mechanism for an epsilon."""
    tail = math.exp(epsilon + _log_cdf(-mu / 2 - epsilon / mu))
    return math.exp(_log_cdf(mu / 2 - epsilon / mu)) - tail


def _log_cdf(x: float) -> float:
    """The logarithm of the standard normal distribution function."""
    if x > _FAR:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    return -(x**2) / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2)
