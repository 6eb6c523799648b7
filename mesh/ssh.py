"""Ask several machines at once over the system's ssh. Nothing is installed or changed there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .facts import NodeEntry
from .finding import Finding, Refused
from .loading import node_from_json

CONNECT_TIMEOUT_S = 10
_INVENTORY = Path(__file__).with_name("inventory.py")
_DESTINATION = re.compile(r"([A-Za-z0-9._-]+@)?([A-Za-z0-9][A-Za-z0-9._-]*)")


class CannotLook(Exception):
    """Some machines could not be asked; ``failures`` has one sentence for each of them."""

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("\n".join(self.failures))


def take_all(hosts: Sequence[str], timeout_s: float, program: Sequence[str] = ("ssh",)) -> tuple[NodeEntry, ...]:
    """One entry per host, in the order given, each asked within ``timeout_s`` and all at the same time.

    Raises :class:`CannotLook` listing every host that failed, or :class:`Refused` for facts that make no sense.
    """
    answers = ask_all(hosts, timeout_s, _INVENTORY.read_text(encoding="utf-8"), (), program)
    failures = [answer for answer in answers if isinstance(answer, str)]
    if failures:
        raise CannotLook(failures)
    nodes: list[NodeEntry] = []
    problems: list[Finding] = []
    for host, answer in zip(hosts, answers, strict=True):
        try:
            nodes.append(node_from_json(answer, f"inventory of {host}"))
        except Refused as refused:
            problems += refused.findings
    if problems:
        raise Refused(problems)
    return tuple(nodes)


def ask_all(
    hosts: Sequence[str], timeout_s: float, source: str, arguments: Sequence[str], program: Sequence[str] = ("ssh",)
) -> tuple[dict[str, object] | str, ...]:
    """Run the Python program ``source`` on every host at once, as ``python3 - --host HOST ARGUMENTS...``.

    Per host, in the order given: the JSON mapping it printed, or the sentence that says why there is none.
    """
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        return tuple(pool.map(lambda host: _ask(host, timeout_s, source, arguments, program), hosts))


def _ask(
    host: str, timeout_s: float, source: str, arguments: Sequence[str], program: Sequence[str]
) -> dict[str, object] | str:
    if not _DESTINATION.fullmatch(host):
        return f"{host}: not a host name; write HOST or USER@HOST"
    name = host.rpartition("@")[2]
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
    argv = [*program, *options, "--", host, "python3", "-", "--host", name, *arguments]
    try:
        done = subprocess.run(
            argv,
            input=source,
            capture_output=True,
            text=True,
            errors="replace",  # a login banner may be in any encoding
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        return f"{host}: '{program[0]}' is not installed here; install the OpenSSH client"
    except subprocess.TimeoutExpired:
        return f"{host}: no answer within {timeout_s:g} s; see whether it is up, or raise --ssh-timeout"
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        return f"{host}: {_reason(done)}"
    return facts if isinstance(facts, dict) else f"{host}: the program did not print a mapping"


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode == 255:  # ssh's own exit status for a failed connection
        return f"ssh failed ({last}); check that 'ssh -o BatchMode=yes' logs in without a question"
    if done.returncode == 127:
        return "there is no python3 on it; install it, or bring its facts as a file"
    return f"the program failed with exit status {done.returncode} ({last})"
