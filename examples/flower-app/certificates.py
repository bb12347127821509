"""A certificate authority, a server's certificate and nodes' keys, with Python alone.

    python certificates.py FOLDER --host 127.0.0.1 --host server.example.org --nodes 4

Name every address under which the server is reached, and the one that the SuperLink is bound to.
FOLDER/ca.key and FOLDER/server.key stay where they are made; ca.crt goes to every node and to whoever starts runs; a
node's private key is better made on the node (`ssh-keygen -t ecdsa -b 384 -N "" -f node`), which then sends the .pub.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 365


def make_certificates(folder: Path, hosts: list[str]) -> None:
    """Write ca.crt, ca.key, server.pem and server.key, valid for these hosts and for a year."""
    refuse_to_overwrite([folder / name for name in ("ca.crt", "ca.key", "server.pem", "server.key")])
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedlada federation CA")])
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = (
        _builder(server_name, ca_name, server_key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    for name, key in (("ca", ca_key), ("server", server_key)):
        _write_private(folder / f"{name}.key", key, serialization.PrivateFormat.PKCS8)
    _write(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM), 0o644)
    _write(folder / "server.pem", server.public_bytes(serialization.Encoding.PEM), 0o644)


def make_node_key(path: Path) -> None:
    """Write a node's key pair, `path` and `path`.pub, in the form of ssh-keygen."""
    public_path = path.with_name(f"{path.name}.pub")
    refuse_to_overwrite([path, public_path])
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(public_path, public + b"\n", 0o644)


def refuse_to_overwrite(paths: list[Path]) -> None:
    """A key that is lost cannot be made again, and those who trust its certificate would be locked out."""
    if found := [str(path) for path in paths if path.exists()]:
        raise FileExistsError(f"{', '.join(found)} would be overwritten: choose another folder, or move them away")


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign, key_cert_sign=sign, crl_sign=sign, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    _write(path, data, 0o600)  # nobody else may read it, not even for a moment


def _write(path: Path, data: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--host", action="append", help="a name or an address of the server; may be given several times"
    )
    parser.add_argument("--nodes", type=int, default=0, help="also make keys for so many nodes")
    arguments = parser.parse_args()
    try:
        make_certificates(arguments.folder, arguments.host or ["127.0.0.1"])
        for number in range(arguments.nodes):
            make_node_key(arguments.folder / f"node-{number}")
    except OSError as error:
        sys.exit(str(error))
    print(f"wrote {', '.join(sorted(path.name for path in arguments.folder.iterdir()))} to {arguments.folder}")


if __name__ == "__main__":
    main()
