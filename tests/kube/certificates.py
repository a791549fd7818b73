"""A certificate authority of a test, and what it signs for a server on loopback."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def make(folder: Path, host: str = "127.0.0.1") -> None:
    """Write `ca.crt`, `server.crt`, `server.key`, and a key for tokens, `tokens.key`."""
    ca_key, ca_name = _key(), _name("test CA")
    ca = _builder(ca_name, ca_name, ca_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    (folder / "ca.crt").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM))
    key = _key()
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
    certificate = _builder(_name("API server"), ca_name, key.public_key()).add_extension(
        names, critical=False
    )
    signed = certificate.sign(ca_key, hashes.SHA256())
    (folder / "server.crt").write_bytes(signed.public_bytes(Encoding.PEM))
    (folder / "server.key").write_bytes(_pem(key))
    (folder / "tokens.key").write_bytes(_pem(_key()))


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return context


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
