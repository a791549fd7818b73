"""Mutual TLS between the processes of a federated training, which has an authority of its own.

Both ends of a connection show a certificate that the training's authority has signed. It names its
holder: the coordinator, or one of the parties. Host names play no part.
"""

import asyncio
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from edl_horovod.coordinator.wire import WireError
from edl_horovod.errors import MissingDependency, how_to_install

COORDINATOR = "edl:coordinator"
"""The holder of the coordinator's certificate."""
MESSAGES, RENDEZVOUS, LINK = "edl-messages", "edl-rendezvous", "edl-link"
"""What a connection is for; the client says so in the handshake (ALPN)."""
LIFETIME = timedelta(days=365)
"""Validity of a certificate, and of the authority at least."""
CLOCKS_DIFFER = timedelta(days=1)
"""A certificate is valid so long before it is signed, for machines whose clock is behind."""
HANDSHAKE_SECONDS = 5.0

_UNKNOWN = "the certificate of {} is not of this training"
_REFUSALS = {
    7: _UNKNOWN,  # The authority has the same name, but another key.
    9: "the certificate of {} is not valid yet: check the clocks of both machines",
    10: "the certificate of {} has expired",
    18: _UNKNOWN,
    19: _UNKNOWN,
    20: _UNKNOWN,
    21: _UNKNOWN,
}
"""By OpenSSL's codes of the verification (x509_vfy.h), of which `ssl` has no names."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A certificate with its key, and the certificate of the authority; each is PEM text."""

    certificate: str
    key: str = field(repr=False)
    authority: str


def holder_of_party(party: str) -> str:
    """The holder that the certificate of a party names."""
    return f"edl:party:{party}"


def new_authority(lifetime: timedelta = LIFETIME) -> str:
    """Make an authority: its key and its own certificate, as PEM text to keep secret.

    It stays valid for ten times the validity of the certificates that it signs.

    Raises:
        MissingDependency: The package cryptography is not installed.
    """
    x509 = _x509()
    key = _new_key()
    name = x509.Name(
        # Unique, so that the other end knows at once that a certificate is of another training.
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"edl {x509.random_serial_number():x}"[:40])]
    )
    builder = _builder(name, name, key.public_key(), 10 * lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(key_cert_sign=True), critical=True)
    return _key_pem(key) + _signed(builder, key)


def sign(authority: str, holder: str, lifetime: timedelta = LIFETIME) -> Identity:
    """Make a key, and a certificate of it that names its holder.

    Args:
        authority: What `new_authority` returned.
        holder: `COORDINATOR`, or the holder of a party.
        lifetime: Validity, from now on.

    Raises:
        MissingDependency: The package cryptography is not installed.
        ValueError: This is no authority.
    """
    x509 = _x509()
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    signer = x509.load_pem_x509_certificate(authority.encode())
    signing_key: Any = load_pem_private_key(authority.encode(), password=None)
    key, name = _new_key(), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, holder)])
    builder = _builder(name, signer.subject, key.public_key(), lifetime)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder)])
    builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    return Identity(
        certificate=_signed(builder, signing_key),
        key=_key_pem(key),
        authority=signer.public_bytes(Encoding.PEM).decode(),
    )


def end_of(certificate: str) -> datetime:
    """When a certificate, as PEM text, ceases to be valid.

    Raises:
        MissingDependency: The package cryptography is not installed.
        ValueError: This is no certificate.
    """
    end: datetime = _x509().load_pem_x509_certificate(certificate.encode()).not_valid_after_utc
    return end


def context(identity: Identity, *protocols: str, is_server: bool = False) -> ssl.SSLContext:
    """The TLS settings of one end: TLS 1.3, with a certificate at both ends.

    Args:
        identity: The certificate and key of this end.
        protocols: What a server offers, or a client asks for.
        is_server: Whether this end accepts connections.

    Raises:
        ValueError: The identity is damaged.
    """
    kind = ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT
    settings = ssl.SSLContext(kind)
    settings.minimum_version = ssl.TLSVersion.TLSv1_3
    settings.check_hostname = False  # `require` checks the holder instead.
    settings.verify_mode = ssl.CERT_REQUIRED
    settings.set_alpn_protocols(list(protocols))
    try:
        settings.load_verify_locations(cadata=identity.authority)
        # `ssl` reads a key from a file alone; only its owner can read this one.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(identity.certificate + identity.key)
            file.flush()
            settings.load_cert_chain(file.name)
    except ssl.SSLError as error:
        raise ValueError(f"its certificate or key is damaged ({error.reason})") from error
    return settings


def holder(writer: asyncio.StreamWriter) -> str:
    """The holder of the certificate that the other end of a connection has shown."""
    names = writer.get_extra_info("peercert").get("subjectAltName", ())
    return str(next((name for kind, name in names if kind == "URI"), ""))


def protocol(writer: asyncio.StreamWriter) -> str:
    """What a connection is for; empty if its ends do not agree."""
    return writer.get_extra_info("ssl_object").selected_alpn_protocol() or ""


async def accept(writer: asyncio.StreamWriter, settings: ssl.SSLContext) -> None:
    """Begin TLS on a connection of which nothing has been read.

    Raises:
        WireError: The other end has no certificate that is valid here. It only sees that the
            connection ends: `asyncio` drops the alert that would say why.
        OSError: The connection is lost, or the handshake takes too long.
    """
    address = writer.get_extra_info("peername")[0]
    try:
        await writer.start_tls(settings, ssl_handshake_timeout=HANDSHAKE_SECONDS)
    except ssl.SSLError as error:
        reason = refusal(error, f"the caller from {address}")
        raise WireError(reason or f"no TLS with {address}: {error.reason}") from error


def refusal(error: ssl.SSLError, other: str) -> str:
    """Why this end of a connection refuses the other; empty for other errors of TLS.

    Args:
        error: The failure of the handshake.
        other: The other end, for people.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        usual = f"the certificate of {{}} is not valid: {error.verify_message}"
        return _REFUSALS.get(error.verify_code, usual).format(other)
    return f"{other} does not encrypt" if error.reason == "WRONG_VERSION_NUMBER" else ""


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise MissingDependency(
            "Certificates of a federated training need the package cryptography.",
            hint=f"To have it, {how_to_install('federated')}.",
        ) from error
    return x509


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem.decode()


def _builder(subject: Any, issuer: Any, public_key: Any, lifetime: timedelta) -> Any:
    x509, now = _x509(), datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + lifetime)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> Any:
    return _x509().KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: Any, key: Any) -> str:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    pem: bytes = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return pem.decode()
