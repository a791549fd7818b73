"""Sums over a ring in which each rank learns the total, and no rank the summand of another.

Each two ranks that contribute derive the same mask. One of them adds it to what it sends, and the
other subtracts it, so the total has no masks: K. Bonawitz et al., "Practical Secure Aggregation for
Privacy-Preserving Machine Learning", CCS 2017, without the recovery of lost ranks' masks. Numbers
are sent as integers modulo 2^32 or 2^64. A masked one is distributed uniformly, whatever its value.

The totals of the same summands over different ranks would show the difference. So a rank sends its
summand of a round, or of an evaluation, once: it notes that on its disk before, and all ranks skip
what one of them has noted.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import MissingDependency, OutputError, hint_of, how_to_install
from edl_horovod.files import whole_file
from edl_horovod.frameworks.base import Collectives
from edl_horovod.ring.state import NEVER

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

log = logging.getLogger(__name__)

LEAST_PARTIES = 3
"""With two, each would learn the other's summand: the total without its own."""
Kind = Literal["round", "evaluation"]
"""What is summed."""
_CHUNK_BYTES = 1 << 20
_LIMB_BITS = 40
_LIMB_EXPONENTS = np.arange(984, -97, -_LIMB_BITS)
"""The digits of a number in base 2^40: all of float64 above 1, and 96 binary places."""


class SecureSums:
    """A party's part in secure sums."""

    def __init__(self, value_range: float, *, note: Path, training: str) -> None:
        """Read which rounds and evaluations must not be repeated.

        Args:
            value_range: Largest change of a number of the model in a round.
            note: The file that says for which of them this party has last sent a summand.
            training: Distinguishes the training from others, whose notes do not count.

        Raises:
            MissingDependency: The package cryptography is not installed.
            JobFailed: The file is damaged.
        """
        try:
            from cryptography.hazmat.primitives.asymmetric import x25519
        except ImportError as error:
            raise MissingDependency(
                "federated.secure_sums needs the package cryptography.",
                hint=f"To have it, {how_to_install('federated')}.",
            ) from error
        self.value_range = value_range
        self._new_secret = x25519.X25519PrivateKey.generate
        self._note, self._training = note, training
        hint = "Restore it, or begin another training, by edl federate in another job_dir."
        self._notes = whole_file.read_json(note, _notes_of, hint=hint) or {}
        """By `_key`, the last number of each training of this party."""

    def last(self, kind: Kind) -> int:
        """The last round, or evaluation, for which this party has sent a summand; -1 for none."""
        return self._notes.get(_key(kind), {}).get(self._training, NEVER)

    def masks(
        self, number: int, *, contributes: bool, collectives: Collectives, kind: Kind = "round"
    ) -> "Masks | None":
        """Agree on masks with the other ranks; all ranks call it before they send summands.

        Args:
            number: The round, or the round before the evaluation.
            contributes: Whether this rank has a summand.
            collectives: The ring.
            kind: What is summed.

        Returns:
            The masks of this rank; None on all ranks if fewer than three contribute, so that they
            must not send their summands.

        Raises:
            OutputError: The note cannot be written.
            CollectiveFailed: A member was lost.
        """
        # Each round and each attempt has keys of its own.
        secret = self._new_secret()
        key = np.frombuffer(secret.public_key().public_bytes_raw(), "<i8").tolist()
        rows = collectives.gather_rows([int(contributes), *key], "edl.rounds.keys").astype("<i8")
        contributors = np.flatnonzero(rows[:, 0]).tolist()
        # All ranks have the same rows, so either all return None or none.
        if len(contributors) < LEAST_PARTIES:
            if contributors:
                log.warning(
                    "%s is skipped: a secure sum needs %d parties with examples, and has %d",
                    *(name_of(kind, number), LEAST_PARTIES, len(contributors)),
                )
            return None
        if not contributes:
            return Masks((), len(contributors))
        self._note_down(kind, number)
        rank = rows[:, 1:].tolist().index(key)
        context = (
            kind.encode() + number.to_bytes(8, "little") + hashlib.sha256(rows.tobytes()).digest()
        )
        streams = [
            (rank < other, _stream(secret, rows[other, 1:].tobytes(), context))
            for other in contributors
            if other != rank
        ]
        return Masks(streams, len(contributors))

    def _note_down(self, kind: Kind, number: int) -> None:
        key = _key(kind)
        notes = {**self._notes, key: {**self._notes.get(key, {}), self._training: number}}
        try:
            whole_file.write_json(self._note, notes)
        except OSError as error:
            raise OutputError(
                f"The number of the {kind} cannot be saved, without which its secure sum might be"
                f" repeated: {error}.",
                received={"job_dir": str(self._note.parent)},
                hint=hint_of(error),
            ) from error
        self._notes = notes


def name_of(kind: Kind, number: int) -> str:
    """What is summed, for people, who count rounds from 1."""
    return f"the evaluation after round {number}" if kind == "evaluation" else f"round {number + 1}"


def _key(kind: Kind) -> str:
    return f"{kind}s"


def _notes_of(content: dict[str, Any]) -> dict[str, dict[str, int]]:
    notes = [content.get(_key(kind), {}) for kind in get_args(Kind)]
    if not any(notes) or not all(
        isinstance(it, dict) and all(isinstance(number, int) for number in it.values())
        for it in notes
    ):
        raise ValueError("it has no numbers of rounds")
    return content


class Masks:
    """The masks of a rank for one round. All ranks mask the same arrays in the same order."""

    def __init__(self, streams: Sequence[tuple[bool, "CipherContext"]], num_summands: int) -> None:
        """Begin with the first array.

        Args:
            streams: For each other rank that contributes, whether its mask is added, and the source
                of the mask; empty for a rank that does not contribute.
            num_summands: The number of ranks that contribute.
        """
        self._streams, self.num_summands = streams, num_summands

    def add_to(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return masked values.

        Args:
            values: Integers of 32 or 64 bits; sums of them are modulo 2^32 or 2^64.
        """
        kind = values.dtype
        masked = values.reshape(-1).astype(f"<u{kind.itemsize}")
        length = _CHUNK_BYTES // kind.itemsize
        for start in range(0, masked.size, length):
            part = masked[start : start + length]
            zeros = bytes(part.nbytes)
            for is_added, stream in self._streams:
                mask = np.frombuffer(stream.update(zeros), part.dtype)
                (np.add if is_added else np.subtract)(part, mask, out=part)
        return masked.view(f"<i{kind.itemsize}").astype(kind, copy=False).reshape(values.shape)


def _stream(secret: Any, public_key: bytes, context: bytes) -> "CipherContext":
    """The source of a mask, the same for the two ranks that have each other's public keys."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    shared = secret.exchange(X25519PublicKey.from_public_bytes(public_key))
    info = b"edl_horovod secure sum" + context
    key = HKDF(hashes.SHA256(), length=32, salt=None, info=info).derive(shared)
    # A key has one stream, so the nonce may be zero.
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()


def to_fixed_point(values: NDArray[Any], bound: float) -> NDArray[Any]:
    """Round real numbers to integers of the same size, whose sum does not overflow.

    Args:
        values: float32 or float64.
        bound: Largest sum of the magnitudes of all summands. It becomes 2^30 or 2^62, a quarter of
            the modulus. Rounding changes a summand by 2^-31 of it at most; one of 64 bits by less
            than float64 itself rounds.
    """
    size = values.dtype.itemsize
    scaled = values.astype(np.float64)
    scaled *= _unit(size) / bound
    return np.rint(scaled, out=scaled).astype(f"i{size}")


def from_fixed_point(integers: NDArray[Any], bound: float) -> NDArray[Any]:
    """Return the numbers of `to_fixed_point`, or of a sum of such, in the same size."""
    size = integers.dtype.itemsize
    return (integers * (bound / _unit(size))).astype(f"f{size}")


def _unit(size: int) -> float:
    return 2.0 ** (8 * size - 2)


def to_limbs(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Write numbers as digits that can be added up exactly; a row for each number.

    The last column counts numbers that are not finite.
    """
    is_finite = np.isfinite(values)
    rest = np.where(is_finite, values, 0.0)
    limbs = np.zeros((values.size, _LIMB_EXPONENTS.size + 1), np.int64)
    for place, exponent in enumerate(_LIMB_EXPONENTS.tolist()):
        digits = np.trunc(np.ldexp(rest, -exponent))
        limbs[:, place] = digits
        rest = rest - np.ldexp(digits, exponent)
    limbs[:, -1] = ~is_finite
    return limbs


def from_limbs(limbs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums of the numbers of `to_limbs`; NaN where one was not finite."""
    # The smallest digits first, as in any sum of numbers that differ in size.
    parts = np.ldexp(limbs[:, :-1].astype(np.float64), _LIMB_EXPONENTS)[:, ::-1]
    return np.where(limbs[:, -1] == 0, parts.cumsum(1)[:, -1], np.nan)
