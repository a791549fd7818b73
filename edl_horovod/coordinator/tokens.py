"""The token with which a party of a federated training joins its coordinator: a private file."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.coordinator.wire import secret_of_party
from edl_horovod.errors import ConfigError, JobFailed
from edl_horovod.files import json_text, whole_file
from edl_horovod.job.json_fields import Format

SECRET = "secret"
"""Name of the file with the secret, in the folder of the tokens."""
_SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class PartyToken:
    """What the operator of a party gets from the operator of the coordinator."""

    party: str
    """The name of the party."""
    secret: str
    """The key of the messages between this party and the coordinator, in hexadecimal digits."""

    @property
    def training(self) -> str:
        """Distinguishes the training from others of this party, and does not show the secret."""
        return hashlib.blake2b(self.secret.encode(), digest_size=8).hexdigest()


_FORMAT = Format(PartyToken)


def issue(folder: Path, parties: Sequence[str]) -> None:
    """Write the tokens of parties, as `<party>.token`; the secret stays the same.

    Args:
        folder: Keeps the secret and the tokens.
        parties: The names of the parties.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    secret_file = folder / SECRET
    if not secret_file.exists():
        whole_file.write_bytes(secret_file, [secrets.token_bytes(_SECRET_BYTES)], mode=0o600)
    secret = secret_file.read_bytes()
    for party in parties:
        token = _FORMAT.write(PartyToken(party=party, secret=secret_of_party(secret, party).hex()))
        path = folder / f"{party}.token"
        whole_file.write_text(path, json_text.dumps(token), is_private=True)


def read(path: Path) -> PartyToken:
    """Read a party's token.

    Raises:
        ConfigError: There is no such file, or it is not a token.
    """
    problem = "There is no such token of a party"
    try:
        token = whole_file.read_json(path, _FORMAT.read, hint="")
        if token is not None:
            bytes.fromhex(token.secret)
            return token
    except (JobFailed, OSError, ValueError) as error:
        problem = f"The token of a party cannot be read: {error}"
    raise ConfigError(
        f"{problem.removesuffix('.')}.",
        received={"--party-token": str(path)},
        hint="Give the file that the operator of the coordinator made for this party"
        " (edl federate).",
    )
