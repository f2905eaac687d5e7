"""Certificates that sign themselves, for a name that is not this machine's."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rayloom import config


def sign(folder: Path, name: str = "front", days: float = 1.0, password: bytes | None = None) -> config.Tls:
    """Writes NAME.crt and NAME.key.

    Args:
        days: until it expires.
        password: to encrypt the key with.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "models.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = config.Tls(certificate=str(folder / f"{name}.crt"), key=str(folder / f"{name}.key"))
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    content = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    Path(made.key).touch(0o600)
    Path(made.key).write_bytes(content)
    Path(made.certificate).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return made
