"""Where the agents of a ring are: behind their sockets over ssh, or at addresses that the caller names."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from roce_ring.control.address import Address, Tls, parse_address
from roce_ring.control.stranger import HELLO
from roce_ring.errors import ConfigError, RoceRingError

from .client import AgentClient, AgentError
from .server import AGENT_SOCKET

RUN_DIR = Path("/run/roce-ring")
CONNECT_S = 10.0
LOGIN_S = CONNECT_S + 5  # in all
_TLS_OR_SSH = "give --tls, or go over ssh"
_DESTINATION = re.compile(r"([A-Za-z0-9._-]+@)?([A-Za-z0-9][A-Za-z0-9._-]*)")


@contextmanager
def agents(
    hosts: Sequence[str], given: Mapping[str, str], tls: Tls | None, ssh: Sequence[str] = ("ssh",)
) -> Iterator[dict[str, AgentClient | RoceRingError]]:
    """Host -> its agent, or why it cannot be asked; all looked for at the same time.

    ``given``: host -> ``unix:/path``, ``HOST:PORT`` (with ``tls``) or ``ssh:[USER@]HOST``; every other host is reached
    as ``ssh:`` its own name, over a forwarded socket. Raises ConfigError if that is not what ``given`` holds.
    """
    addresses = _addresses(hosts, given, tls)
    over = threading.Event()
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="roce-ring-") as folder:

        def find(host: str) -> AgentClient | RoceRingError:
            address, way = addresses[host], ""
            try:
                if isinstance(address, str):
                    way = "over ssh"
                    address = _forward(host, address, Path(folder) / f"{hosts.index(host)}.sock", ssh, stack, over)
                client = AgentClient(address, tls, host, way)
            except RoceRingError as error:
                return error
            stack.callback(client.close)
            return client

        with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
            try:
                found = dict(zip(hosts, pool.map(find, hosts), strict=True))
            except BaseException:
                over.set()
                raise
        yield found


def _addresses(hosts: Sequence[str], given: Mapping[str, str], tls: Tls | None) -> dict[str, Address | str]:
    """Host -> where its agent listens, or where ssh logs in. Raises ConfigError with all that is wrong."""
    problems, hints = [], []
    if unknown := sorted(set(given) - set(hosts)):
        problems.append(f"the plan has no node {', '.join(unknown)}")
        hints.append(f"its nodes are {', '.join(hosts)}")
    found: dict[str, Address | str] = {}
    for host in hosts:
        text = given.get(host, f"ssh:{host}")
        if text.startswith("ssh:"):
            found[host] = text.removeprefix("ssh:")
            if not _DESTINATION.fullmatch(text.removeprefix("ssh:")):
                problems.append(f"address of {host}: {text!r} names no host that ssh could log in to")
                hints.append("write ssh:HOST or ssh:USER@HOST")
            continue
        try:
            found[host] = address = parse_address(text, tls, f"address of {host}", _TLS_OR_SSH)
            if address.unix is None and tls is None:  # on loopback, too
                raise ConfigError(f"address of {host}: an agent at {text} speaks mutual TLS only", _TLS_OR_SSH)
        except ConfigError as error:
            problems.append(error.message)
            hints.append(error.hint)
    if problems:
        raise ConfigError("; ".join(problems), "; ".join(dict.fromkeys(filter(None, hints))))
    return found


def _forward(
    host: str,
    destination: str,
    local: Path,
    ssh: Sequence[str],
    stack: contextlib.ExitStack,
    over: threading.Event,
) -> Address:
    """The node's agent socket, carried here by an ssh of its own that ends with ``stack``. Raises AgentError."""
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S:.0f}",
        "ExitOnForwardFailure=yes",
        "StreamLocalBindMask=0177",
        "ControlPath=none",  # a connection that is shared with others would keep the socket after us
    ]
    words = [word for option in options for word in ("-o", option)]
    argv = [*ssh, "-N", *words, "-L", f"{local}:{RUN_DIR / AGENT_SOCKET}", "--", destination]
    said = local.with_suffix(".log")
    try:
        with said.open("wb") as errors:  # not a pipe: nobody would read it later on
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    except FileNotFoundError:
        raise AgentError("failed", f"'{ssh[0]}' is not installed here", "install the OpenSSH client") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise AgentError("failed", f"'{ssh[0]}' cannot be started: {why}", "see whether it is a program") from None
    stack.callback(_end, process)
    deadline = time.monotonic() + LOGIN_S
    while (answers := _answers(local)) is None:
        if process.poll() is not None or time.monotonic() > deadline or over.is_set():
            _end(process)
            last = (said.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
            fix = f"check that 'ssh -o BatchMode=yes {destination}' logs in without a question, as root"
            raise AgentError("not-running", f"ssh failed ({last})", fix)
        time.sleep(0.02)
    if not answers:
        fix = (
            f"start it on {host} ('systemctl start roce-ring-agent'), and log in as root (--agent {host}=ssh:root@...)"
        )
        seen = f"ssh reaches {host}, but no agent behind {RUN_DIR / AGENT_SOCKET} there"
        raise AgentError("not-running", seen, fix)
    return Address(f"unix:{local}", local, True)


def _answers(local: Path) -> bool | None:
    """Whether an agent answers the first words of HTTP/2; where nobody listens at the far end, ssh hangs up instead.
    None: ssh itself does not listen yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(str(local))
        except OSError:
            return None
        try:
            connection.sendall(HELLO)
            return bool(connection.recv(1))
        except TimeoutError:
            return True  # slow: whoever asks it will say so
        except OSError:
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
