"""Rendezvous addresses, and what each kind must be protected with."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tls:
    """Mutual TLS, as PEM files: this rank's certificate and key, and the authority that signed everybody's. `names`:
    the subject alternative names or common names that may take part."""

    ca: Path
    cert: Path
    key: Path
    names: tuple[str, ...]

    def read(self) -> tuple[bytes, bytes, bytes]:
        """(ca, cert, key). All problems in one ConfigError."""
        out, problems = [], []
        for what in ("ca", "cert", "key"):
            path = Path(getattr(self, what))
            try:
                out.append(path.read_bytes())
            except OSError as error:
                problems.append(f"{what} file {path}: {(error.strerror or str(error)).lower()}")
        if not problems:
            try:  # gRPC would only say that nobody answers
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_verify_locations(self.ca)
                context.load_cert_chain(self.cert, self.key)
            except ssl.SSLError as error:
                problems.append(
                    f"ca {self.ca}, cert {self.cert} and key {self.key} do not load together: {error.reason or error}"
                )
        if not self.names:
            problems.append("names is empty: list the certificate names that may take part")
        if problems:
            raise ConfigError("cannot use these TLS settings: " + "; ".join(problems))
        return out[0], out[1], out[2]


@dataclass(frozen=True, slots=True)
class Address:
    """`target` is what gRPC dials; `unix` is the socket's path or None."""

    target: str
    unix: Path | None
    loopback: bool


_WITH_TLS = "pass tls=Tls(ca=..., cert=..., key=..., names=(...)), or use TorchExchange over torch.distributed"


def parse_address(text: str, tls: Tls | None, what: str = "rendezvous address", with_tls: str = _WITH_TLS) -> Address:
    """`unix:/path`, `127.0.0.1:port`, or with mutual TLS `host:port`. Raises ConfigError that says how to fix it.
    `what` names the address in it, `with_tls` says how to give what a secure one needs."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute() or len(str(path)) > 107:
            raise ConfigError(f"{what} {text!r}: expected unix: and an absolute path of at most 107 bytes")
        return Address(text, path, True)
    match = re.fullmatch(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})", text)
    if not match or not 0 < int(match["port"]) < 65536:
        raise ConfigError(f"{what} {text!r}: expected unix:/path or host:port, e.g. 127.0.0.1:29400")
    host = match["host"].strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if ip is not None and ip.is_unspecified:
        raise ConfigError(f"{what} {text!r} is every interface of this host: name the management address of it")
    loopback = host == "localhost" or (ip is not None and ip.is_loopback)
    if not loopback and tls is None:
        raise ConfigError(
            f"{what} {text!r} leaves this host, and without mutual TLS anybody could take part",
            with_tls,
        )
    return Address(text, None, loopback)
