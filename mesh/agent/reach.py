"""Where the agents of a ring are: behind their sockets over ssh, or at addresses that the caller names."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from roce_ring.control.address import Tls, parse_address
from roce_ring.errors import ConfigError, RoceRingError

from .client import AgentClient, AgentError
from .server import AGENT_SOCKET

RUN_DIR = Path("/run/roce-ring")
CONNECT_S = 10.0
_DESTINATION = re.compile(r"([A-Za-z0-9._-]+@)?([A-Za-z0-9][A-Za-z0-9._-]*)")


@contextmanager
def agents(
    hosts: Sequence[str], given: Mapping[str, str], tls: Tls | None, ssh: Sequence[str] = ("ssh",)
) -> Iterator[dict[str, AgentClient | RoceRingError]]:
    """Host -> its agent, or why it cannot be asked; all looked for at the same time.

    ``given``: host -> ``unix:/path``, ``HOST:PORT`` (with ``tls``) or ``ssh:[USER@]HOST``; every other host is reached
    as ``ssh:`` its own name, over a forwarded socket.
    """
    unknown = sorted(set(given) - set(hosts))
    if unknown:
        raise ConfigError(f"the plan has no node {', '.join(unknown)}", f"its nodes are {', '.join(hosts)}")
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(prefix="roce-ring-") as folder:

        def find(host: str) -> AgentClient | RoceRingError:
            address = given.get(host, f"ssh:{host}")
            try:
                if address.startswith("ssh:"):
                    socket = Path(folder) / f"{hosts.index(host)}.sock"
                    process = _forward(host, address.removeprefix("ssh:"), socket, ssh)
                    stack.callback(_end, process)
                    address = f"unix:{socket}"
                fix = "give --tls, or go over ssh"
                client = AgentClient(parse_address(address, tls, f"address of {host}", fix), tls, host)
            except RoceRingError as error:
                return error
            stack.callback(client.close)
            return client

        with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
            found = dict(zip(hosts, pool.map(find, hosts), strict=True))
        yield found


def _forward(host: str, destination: str, socket: Path, ssh: Sequence[str]) -> subprocess.Popen[str]:
    """An ssh that carries the node's agent socket here, once that socket answers."""
    if not _DESTINATION.fullmatch(destination):
        raise AgentError("failed", f"{host}: {destination!r} is not a host name", "write ssh:HOST or ssh:USER@HOST")
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S:.0f}",
        "ExitOnForwardFailure=yes",
        "StreamLocalBindMask=0177",
    ]
    words = [word for option in options for word in ("-o", option)]
    argv = [*ssh, "-N", *words, "-L", f"{socket}:{RUN_DIR / AGENT_SOCKET}", "--", destination]
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        raise AgentError("failed", f"'{ssh[0]}' is not installed here", "install the OpenSSH client") from None
    deadline = time.monotonic() + CONNECT_S + 5
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            _end(process)
            said = process.stderr.read() if process.stderr else ""
            last = (said.strip().splitlines() or ["no message"])[-1]
            fix = f"check that 'ssh -o BatchMode=yes {destination}' logs in without a question, as root"
            raise AgentError("not-running", f"{host}: ssh failed ({last})", fix)
        time.sleep(0.02)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
