"""The token with which a party of a federated training joins its coordinator: a private file."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from edl_horovod.coordinator import tls
from edl_horovod.coordinator.tls import Identity
from edl_horovod.coordinator.wire import secret_of_party
from edl_horovod.errors import ConfigError, JobFailed
from edl_horovod.files import json_text, whole_file
from edl_horovod.job.json_fields import Format

SECRET = "secret"
"""Name of the file with the secret, in the folder of the tokens."""
AUTHORITY = "authority.pem"
"""Name of the file with the authority of the certificates, key included, in the same folder."""
_SECRET_BYTES = 32
_RENEWED_BEFORE = timedelta(days=60)
"""A token is made again, when the coordinator starts, so long before its certificate expires."""


@dataclass(frozen=True, kw_only=True)
class PartyToken:
    """What the operator of a party gets from the operator of the coordinator."""

    party: str
    """The name of the party."""
    secret: str = field(repr=False)
    """The key of the messages between this party and the coordinator, in hexadecimal digits."""
    certificate: str = ""
    """The certificate of the party, as PEM text; empty in a training without encryption."""
    key: str = field(default="", repr=False)
    """The key of the certificate."""
    authority: str = ""
    """The certificate of the training's authority."""

    @property
    def training(self) -> str:
        """Distinguishes the training from others of this party, and does not show the secret."""
        return hashlib.blake2b(self.secret.encode(), digest_size=8).hexdigest()

    @property
    def identity(self) -> Identity | None:
        """How the party proves its name to others; None in a training without encryption."""
        if not self.certificate:
            return None
        return Identity(certificate=self.certificate, key=self.key, authority=self.authority)


_FORMAT = Format(PartyToken)


def issue(
    folder: Path,
    parties: Sequence[str],
    *,
    is_encrypted: bool = True,
    lifetime: timedelta = tls.LIFETIME,
) -> None:
    """Write the tokens of parties, as `<party>.token`; the secret and the authority stay the same.

    Args:
        folder: Keeps the secret, the authority and the tokens. A token of an earlier call remains
            unless its certificate expires soon.
        parties: The names of the parties.
        is_encrypted: Whether the tokens have certificates.
        lifetime: Validity of the certificates.

    Raises:
        OSError: The folder cannot be written.
        MissingDependency: The package cryptography is not installed.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret_file, authority_file = folder / SECRET, folder / AUTHORITY
    if not secret_file.exists():
        whole_file.write_bytes(secret_file, [secrets.token_bytes(_SECRET_BYTES)], mode=0o600)
    if is_encrypted and not authority_file.exists():
        whole_file.write_text(authority_file, tls.new_authority(), is_private=True)
    secret = secret_file.read_bytes()
    for party in parties:
        path = folder / f"{party}.token"
        token = PartyToken(party=party, secret=secret_of_party(secret, party).hex())
        if is_encrypted and not _is_good(path, token, authority_file.read_text()):
            holder = tls.holder_of_party(party)
            identity = tls.sign(authority_file.read_text(), holder, lifetime)
            token = PartyToken(party=party, secret=token.secret, **asdict(identity))
        elif is_encrypted:
            continue
        whole_file.write_text(path, json_text.dumps(_FORMAT.write(token)), is_private=True)


def read(path: Path) -> PartyToken:
    """Read a party's token.

    Raises:
        ConfigError: There is no such file, or it is not a token, or its certificate has expired.
        MissingDependency: The package cryptography is not installed.
    """
    problem = "There is no such token of a party"
    hint = "Give the file that the operator of the coordinator made for this party (edl federate)."
    try:
        token = whole_file.read_json(path, _FORMAT.read, hint="")
        if token is not None:
            bytes.fromhex(token.secret)
            if token.identity is None:
                return token
            tls.context(token.identity)
            end = tls.end_of(token.certificate)
            if end > datetime.now(UTC):
                return token
            problem = (
                f"The certificate of party {token.party!r} expired on {end:%Y-%m-%d at %H:%M} UTC"
            )
            hint = (
                "Ask the operator of the coordinator for a new token: edl federate makes one when"
                " it starts."
            )
    except (JobFailed, OSError, ValueError) as error:
        problem = f"The token of a party cannot be read: {error}"
    raise ConfigError(
        f"{problem.removesuffix('.')}.", received={"--party-token": str(path)}, hint=hint
    )


def _is_good(path: Path, expected: PartyToken, authority: str) -> bool:
    """Whether a file is the token of a party, for a good while yet."""
    try:
        token = read(path)
    except ConfigError:
        return False
    is_same = token.secret == expected.secret and token.authority in authority
    soon = datetime.now(UTC) + _RENEWED_BEFORE
    return is_same and bool(token.certificate) and tls.end_of(token.certificate) > soon
