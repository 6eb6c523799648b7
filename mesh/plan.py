#!/usr/bin/env python3
"""The planner program: ``python mesh/plan.py FACTS``, the same as ``roce-ring plan FACTS``.

Standard output is the result and ends with the environment lines; everything else goes to standard error.
Exit status: 0 planned, 1 something is wrong (or ``--diff`` found differences), 2 usage, or could not look.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if __name__ == "__main__" and not __package__:  # run as a script from a clone: make the folder a package (PEP 366)
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    __package__ = "mesh"

try:
    import msgspec
    import yaml as _yaml  # noqa: F401 (used by loading; asked for here so that the sentence below covers it)
except ImportError as _missing:
    sys.exit(f"plan: the Python package {_missing.name} is not installed; run: pip install PyYAML msgspec")

from . import output, report, ssh
from .commands import down, up
from .diff import differences
from .facts import Common, Facts, resolve
from .failure import Parser, print_error
from .finding import Finding, Refused
from .loading import load_facts, load_plan, put_in_order
from .model import Plan
from .planner import make_plan
from .propose import Proposal, propose_order
from .text import environment

SCHEMA = "roce-ring/plan/v1"
OK, WRONG, COULD_NOT_LOOK, INTERRUPTED = 0, 1, 2, 130
SSH_TIMEOUT_S = 60.0
MAX_SSH_TIMEOUT_S = 3600  # an hour; larger numbers overflow in the operating system
_NOT_LOOKED = {"file-missing"}  # findings that mean there was nothing to judge


def parser(prog: str | None = None) -> argparse.ArgumentParser:
    """The command line, for both ways to start the program."""
    options = Parser(
        prog=prog,
        description="Plan a switchless RoCE ring: order, paths, forwarding rules and the engines' environment lines.",
        epilog="Examples of FACTS are in mesh/examples; docs/mesh.md describes the format.",
    )
    add = options.add_argument
    add("facts", nargs="?", type=Path, metavar="FACTS", help="YAML or JSON file, or a directory with one file per node")
    add("--ssh", nargs="+", metavar="HOST", help="take the facts from these hosts over ssh, rank 0 first (read-only)")
    add("--ssh-timeout", type=float, metavar="S", help=f"seconds to wait for each host (default {SSH_TIMEOUT_S:g})")
    add("--tp-order", metavar="HOST,...", help="tensor-parallel order, rank 0 first (default: as listed)")
    add("--propose-order", action="store_true", help="print the order with the fewest relays between ranks, and stop")
    add("--dry-run", action="store_true", help="print the exact commands for every node, up and down")
    add("--diff", type=Path, metavar="PLAN", help="print what changes against what --out wrote; status 1 if any")
    add("--out", type=Path, metavar="DIR", help="write plan, per-node files, environment files and picture to DIR")
    add("--json", action="store_true", help="print one JSON document instead of text")
    return options


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run the program; returns its exit status."""
    options = parser(prog)
    chosen = options.parse_args(argv)
    if (chosen.facts is None) == (chosen.ssh is None):
        options.error("give either FACTS or --ssh HOST...")
    if chosen.propose_order and (chosen.out or chosen.diff or chosen.dry_run):
        options.error("--propose-order prints an order and stops: give it without --out, --diff and --dry-run")
    if chosen.ssh is None and chosen.ssh_timeout is not None:
        options.error("--ssh-timeout is for --ssh, which is not there")
    chosen.ssh_timeout = SSH_TIMEOUT_S if chosen.ssh_timeout is None else chosen.ssh_timeout
    if not 0 < chosen.ssh_timeout <= MAX_SSH_TIMEOUT_S:
        options.error(f"--ssh-timeout must be more than 0 and at most {MAX_SSH_TIMEOUT_S} seconds")
    if chosen.tp_order is not None and "" in _order(chosen):
        options.error("--tp-order must name every host, separated by commas, like s1,s4,s3,s2")
    try:
        return _answer(chosen)
    except output.CannotWrite as failed:
        _error(str(failed))
        if chosen.json:
            print_error("setup", str(failed))
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return OK
    except KeyboardInterrupt:
        _error("interrupted; nothing was changed")
        if chosen.json:
            print_error("interrupted", "interrupted; nothing was changed")
        return INTERRUPTED
    return COULD_NOT_LOOK


def _answer(chosen: argparse.Namespace) -> int:
    """Print the plan or why there is none."""
    try:
        return _run(chosen)
    except Refused as refused:
        _refuse(refused.findings, as_json=chosen.json)
        return COULD_NOT_LOOK if {item.code for item in refused.findings} <= _NOT_LOOKED else WRONG
    except ssh.CannotLook as failed:
        if chosen.json:
            _emit({"schema": SCHEMA, "plan": None, "findings": [], "failures": failed.failures})
        _error(f"could not ask {len(failed.failures)} of {len(chosen.ssh)} host(s):", *failed.failures)
    return COULD_NOT_LOOK


def _run(chosen: argparse.Namespace) -> int:
    if chosen.out:
        output.check(chosen.out)  # not only after all hosts were asked
    facts = _facts(chosen)
    plan, findings = make_plan(facts)
    if chosen.propose_order:
        return _propose(propose_order(plan), as_json=chosen.json)
    changes = differences(load_plan(chosen.diff), plan) if chosen.diff else None
    if chosen.out:
        output.write(chosen.out, plan, facts, findings)
        print(f"wrote {chosen.out}", file=sys.stderr)
    if chosen.json:
        _print_json(plan, findings, changes)
    else:
        _print_text(plan, findings, changes, chosen)
    return WRONG if changes else OK


def _facts(chosen: argparse.Namespace) -> Facts:
    order = _order(chosen)
    if chosen.ssh is None:
        return load_facts(chosen.facts, order)
    print(f"asking {', '.join(chosen.ssh)} ...", file=sys.stderr)
    return resolve(put_in_order(ssh.take_all(chosen.ssh, chosen.ssh_timeout), order), Common())


def _order(chosen: argparse.Namespace) -> tuple[str, ...]:
    return tuple(host.strip() for host in chosen.tp_order.split(",")) if chosen.tp_order is not None else ()


def _print_text(
    plan: Plan, findings: Sequence[Finding], changes: Sequence[str] | None, chosen: argparse.Namespace
) -> None:
    _print([*report.summary(plan, findings), ""])
    if changes is not None:
        _print(
            [f"changes against {chosen.diff}:", *changes, ""] if changes else [f"no change against {chosen.diff}", ""]
        )
    if chosen.dry_run:
        _print(report.commands(plan))
    lines = environment(plan)
    each = "one line" if len(lines["sglang"]) == 1 else "one line per rank"
    _print([f"environment, {each} each for {', '.join(lines)}:"])
    for found in lines.values():
        _print(found)


def _print_json(plan: Plan, findings: Sequence[Finding], changes: Sequence[str] | None) -> None:
    document: dict[str, object] = {
        "schema": SCHEMA, "plan": plan, "environment": environment(plan), "findings": findings, "changes": changes,
    }  # fmt: skip
    document["commands"] = {
        node.host: {
            "up": [step.argv or step.why for step in up(node)],
            "down": [step.argv or step.why for step in down(node)],
        }
        for node in plan.nodes
    }
    _emit(document)


def _propose(found: Proposal, as_json: bool) -> int:
    if as_json:
        _emit({"schema": SCHEMA, "proposal": found})
    else:
        _print(report.proposal(found))
    return OK


def _refuse(findings: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        _emit({"schema": SCHEMA, "plan": None, "findings": findings})
    else:
        print("\n".join(report.refusal(findings)), file=sys.stderr)


def _emit(document: object) -> None:
    _print([msgspec.json.format(msgspec.json.encode(document), indent=2).decode()])


def _print(lines: Iterable[str]) -> None:
    """Write to standard output at once, so that a disk that is full is noticed here and not when Python ends."""
    if sys.stdout is None:  # what Python makes of a closed one
        raise output.CannotWrite("standard output is closed, so there is nowhere to print to")
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise output.CannotWrite(f"standard output cannot be written ({error.strerror})") from error


def _drop_output() -> None:
    """Send what is still buffered nowhere, or Python would fail once more on it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _error(*lines: str) -> None:
    print("error: " + "\n  ".join(lines), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
