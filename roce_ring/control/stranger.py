"""Who answers at a rendezvous address if no gRPC server does: gRPC would only say that the channel is not ready."""

from __future__ import annotations

import socket

from .address import Address

# A client's first words and a server's first frame, RFC 9113 section 3.4: nine bytes of frame header, the fourth is the
# type, and a server begins with SETTINGS, which is 4.
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_BYTES = 9
_SETTINGS = 4
_SHOWN = 40


def stranger(address: Address, timeout_s: float) -> str | None:
    """The beginning of what another program says at `address`. None: nobody answers, nothing comes within `timeout_s`,
    or it is a gRPC server."""
    try:
        with _connect(address, timeout_s) as connection:
            connection.sendall(HELLO)
            said = connection.recv(_FRAME_BYTES + _SHOWN)
    except OSError:
        return None
    if not said or (len(said) >= _FRAME_BYTES and said[3] == _SETTINGS):
        return None
    lines = said.decode("ascii", errors="backslashreplace").splitlines()
    return lines[0][:_SHOWN] if lines else ""


def _connect(address: Address, timeout_s: float) -> socket.socket:
    if address.unix is None:
        host, _, port = address.target.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(address.unix))
    except OSError:
        connection.close()
        raise
    return connection
