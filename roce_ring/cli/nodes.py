"""What the verbs that drive all nodes of a plan share: their options, who is asked, what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..errors import ConfigError, RoceRingError

if TYPE_CHECKING:
    from ..control.address import Tls
    from ..mesh.agent.client import AgentClient
    from ..mesh.finding import Finding
    from ..mesh.model import Plan

T = TypeVar("T")

PlanFile = Annotated[
    Path, typer.Argument(metavar="PLAN", help="plan.json, or the directory that 'roce-ring plan --out' wrote.")
]
Agent = Annotated[
    list[str],
    typer.Option(
        "--agent",
        metavar="HOST=ADDRESS",
        help="A node's agent: ssh:[USER@]HOST, unix:/path, or HOST:PORT with TLS. Without it: ssh to the node's name.",
    ),
]
TlsFiles = Annotated[
    Path | None, typer.Option("--tls", help="Directory with ca.pem, cert.pem and key.pem, for HOST:PORT addresses.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option(help="Even if it cuts off a running session.")]


@dataclass(frozen=True, slots=True)
class Fleet:
    """The agents of a plan's nodes, in rank order. `missing`: a finding for each that cannot be asked."""

    plan: Plan
    document: str
    agents: Mapping[str, AgentClient]
    missing: tuple[Finding, ...]

    def each(self, question: Callable[[AgentClient], T]) -> tuple[dict[str, T], list[Finding]]:
        """Asks all at the same time: host -> answer, and a finding for each that gave none."""
        if not self.agents:
            return {}, []
        with ThreadPoolExecutor(max_workers=len(self.agents)) as pool:
            asked = {host: pool.submit(question, agent) for host, agent in self.agents.items()}
        answers, silent = {}, []
        for host, future in asked.items():
            try:
                answers[host] = future.result()
            except RoceRingError as error:
                silent.append(_unreachable(host, error))
        return answers, silent


@contextmanager
def fleet(plan_file: Path, agent: Sequence[str], tls: Path | None) -> Iterator[Fleet]:
    """Raises RoceRingError with what is wrong with the plan file or the options."""
    from ..mesh.agent.reach import agents
    from ..mesh.failure import in_one
    from ..mesh.finding import Refused
    from ..mesh.loading import load_plan, plan_text

    try:
        plan, files = load_plan(plan_file), tls_of(tls)
        if files:
            files.read()  # a mistake here is not one of the nodes
        with agents(plan.hosts, _given(agent), files) as found:
            reached = {host: one for host, one in found.items() if not isinstance(one, RoceRingError)}
            missing = [_unreachable(host, one) for host, one in found.items() if isinstance(one, RoceRingError)]
            yield Fleet(plan, plan_text(plan), reached, tuple(missing))
    except Refused as refused:
        raise RoceRingError(*in_one(refused.findings)) from None


def refuse_given(context: typer.Context, names: Sequence[str], why: str, fix: str = "") -> None:
    """Raises ConfigError if one of these options was typed: it would be ignored, and nobody would see that."""
    typed = [name for name in names if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if typed:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise ConfigError(f"{options} {why}", fix or "leave it out")


def tls_of(directory: Path | None, names: Sequence[str] = ("",)) -> Tls | None:
    """Mutual TLS out of a directory with ca.pem, cert.pem and key.pem."""
    from ..control.address import Tls

    if directory is None:
        return None
    return Tls(directory / "ca.pem", directory / "cert.pem", directory / "key.pem", tuple(names))


def instead_of(held: str) -> str:
    """What to do where a plan is to stand and ``held``, the hash of what a node has, is another or none."""
    if not held:
        return "'roce-ring up' with this plan"
    return f"use the file of plan {held[:12]}, or 'roce-ring down' with that file and then 'roce-ring up' with this one"


def _given(agent: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for text in agent:
        host, equals, address = text.partition("=")
        if not equals or not host or not address:
            raise ConfigError(f"--agent {text!r}: expected HOST=ADDRESS, like s1=ssh:root@s1 or s1=unix:/run/a.sock")
        if host in given:
            raise ConfigError(f"--agent gives {host} twice: {given[host]} and {address}", "give it once")
        given[host] = address
    return given


def _unreachable(host: str, error: RoceRingError) -> Finding:
    from ..mesh.finding import finding

    return finding("agent-unreachable", host, error.message, "an answer", error.hint or "see the agent's log there")


def finish(
    findings: Sequence[Finding], document: Mapping[str, Any] | None, lines: Sequence[str], *, asked: bool = True
) -> None:
    """Prints the result (JSON if `document` is given), then the findings; exits 1 if one is an error, 2 if
    nobody could be `asked`."""
    from ..mesh.report import in_words

    wrong = any(item.severity == "error" for item in findings)
    if document is not None:
        import msgspec

        print(json.dumps({**document, "ok": not wrong, "findings": msgspec.to_builtins(list(findings))}, indent=2))
    else:
        for line in lines:
            print(line)
        for line in in_words(findings):
            print(line, file=sys.stderr if wrong and not lines else sys.stdout)
    raise typer.Exit((1 if asked else 2) if wrong else 0)
