#!/usr/bin/env python3
"""The doctor: ``python mesh/doctor/doctor.py``, the same as ``roce-ring doctor``. Looks, and changes nothing.

Exit status: 0 fine (notes at most), 1 errors or warnings, 2 usage, or something could not be looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if __name__ == "__main__" and not __package__:  # run as a script from a clone: make the folder a package (PEP 366)
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    __package__ = "mesh.doctor"

try:
    import msgspec
    import yaml as _yaml  # noqa: F401 (used by loading; asked for here so that the sentence below covers it)
except ImportError as _missing:
    sys.exit(f"doctor: the Python package {_missing.name} is not installed; run: pip install PyYAML msgspec")

from .. import output, ssh
from ..failure import Parser, in_one, print_error
from ..finding import Refused
from ..inventory import HOST
from ..loading import load_plan, plan_from_json
from ..model import Plan
from ..report import in_words
from . import bundle, text
from .checks import Report, check_all
from .evidence import Evidence, evidence_from_json, load_evidence
from .look import gather
from .look_host import AGENT_STATE as _AGENT_STATE

SCHEMA = "roce-ring/doctor/v1"
FINE, FINDINGS, COULD_NOT_LOOK, INTERRUPTED = 0, 1, 2, 130
INTERVAL_S, SSH_TIMEOUT_S = 1.0, 60.0
MAX_INTERVAL_S = 3600
AGENT_STATE = Path(_AGENT_STATE)


def parser(prog: str | None = None) -> argparse.ArgumentParser:
    """The command line, for both ways to start the program."""
    options = Parser(
        prog=prog,
        description="Look at this node, or at several over ssh, for whatever stops, slows or misleads a RoCE ring.",
        epilog="Exit status: 0 fine, 1 errors or warnings, 2 something could not be looked at.",
    )
    add = options.add_argument
    add(
        "--plan",
        type=Path,
        metavar="PLAN",
        help="the ring's plan (what 'roce-ring plan --out' wrote); default: the one that this node's agent holds",
    )
    add("--ssh", nargs="+", metavar="HOST", help="look at these hosts over ssh instead of at this one")
    add("--ssh-timeout", type=float, metavar="S", help=f"seconds to wait for each host (default {SSH_TIMEOUT_S:g})")
    add("--host", help="name of this node in the plan (default: this machine's host name)")
    add("--interval", type=float, metavar="S", help="seconds to watch the counters (default 1; 0: do not)")
    add("--evidence-out", type=Path, metavar="FILE", help="also write what was seen to FILE, to be judged elsewhere")
    add("--from", dest="source", type=Path, metavar="FILE", help="judge what --evidence-out wrote instead of looking")
    add("--json", action="store_true", help="print one JSON document instead of text")
    return options


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run the program; returns its exit status."""
    options = parser(prog)
    chosen = options.parse_args(argv)
    if chosen.source and (chosen.ssh or chosen.host is not None or chosen.evidence_out or chosen.interval is not None):
        options.error("--from judges a file and looks nowhere: without --ssh, --host, --interval and --evidence-out")
    if chosen.ssh and chosen.host is not None:
        options.error("--host names this node, but --ssh looks at others, under the names given there")
    if not chosen.ssh and chosen.ssh_timeout is not None:
        options.error("--ssh-timeout is for --ssh, which is not there")
    if chosen.host is not None and not HOST.fullmatch(chosen.host):
        options.error(f"--host {chosen.host[:60]!r}: expected up to 253 letters, digits, '.', '-' and '_'")
    chosen.interval = INTERVAL_S if chosen.interval is None else chosen.interval
    chosen.ssh_timeout = SSH_TIMEOUT_S if chosen.ssh_timeout is None else chosen.ssh_timeout
    if not 0 <= chosen.interval <= MAX_INTERVAL_S:
        options.error(f"--interval must be 0 to {MAX_INTERVAL_S} seconds")
    if not 0 < chosen.ssh_timeout <= MAX_INTERVAL_S:
        options.error(f"--ssh-timeout must be more than 0 and at most {MAX_INTERVAL_S} seconds")
    try:
        return _answer(chosen)
    except Refused as refused:
        print("\n".join(in_words(refused.findings)), file=sys.stderr)
        if chosen.json:
            print_error(*in_one(refused.findings))
    except output.CannotWrite as failed:
        print(f"error: {failed}", file=sys.stderr)
        if chosen.json:
            print_error("setup", str(failed))
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _drop_output()
        return FINE
    except OSError as error:
        what = "standard output cannot be written" if error.filename is None else f"{error.filename} cannot be used"
        if error.filename is None:
            _drop_output()
        print(f"error: {what} ({(error.strerror or str(error)).lower()})", file=sys.stderr)
    except KeyboardInterrupt:
        print("error: interrupted; nothing was changed", file=sys.stderr)
        if chosen.json:
            print_error("interrupted", "interrupted; nothing was changed")
        return INTERRUPTED
    return COULD_NOT_LOOK


def _answer(chosen: argparse.Namespace) -> int:
    plan = _plan(chosen)
    if chosen.evidence_out:
        output.try_file(chosen.evidence_out)  # not only after all the looking
    nodes, failures = _look(chosen)
    if chosen.evidence_out:
        document = msgspec.json.format(msgspec.json.encode(nodes), indent=1)
        output.write_file(chosen.evidence_out, document + b"\n")
        print(f"wrote {chosen.evidence_out}", file=sys.stderr)
    report = check_all(nodes, plan)
    said = text.verdict(report, failures)
    if chosen.json:
        _print([_document(report, failures, said)])
    else:
        _print([*text.lines(report, failures), said])
    return _status(report, failures)


def _plan(chosen: argparse.Namespace) -> Plan | None:
    """The plan given, or the one that this node's own agent holds."""
    if chosen.plan:
        return load_plan(chosen.plan)
    if chosen.ssh or chosen.source:
        return None
    try:
        held = json.loads(AGENT_STATE.read_bytes())["plan"]
    except (OSError, ValueError, KeyError, TypeError):  # no agent, or a file that only root reads
        return None
    return plan_from_json(held, str(AGENT_STATE)) if held else None


def _look(chosen: argparse.Namespace) -> tuple[tuple[Evidence, ...], tuple[str, ...]]:
    """The evidence of every node, and a sentence for each that could not be asked."""
    if chosen.source:
        return load_evidence(chosen.source), ()
    if not chosen.ssh:
        return (evidence_from_json(gather(chosen.host or "", chosen.interval), "this node"),), ()
    print(f"looking at {', '.join(chosen.ssh)} ...", file=sys.stderr)
    arguments = ("--interval", str(chosen.interval))
    nodes, failures = [], []
    for host, answer in zip(
        chosen.ssh, ssh.ask_all(chosen.ssh, chosen.ssh_timeout, bundle.program(), arguments), strict=True
    ):
        if isinstance(answer, str):
            failures.append(answer)
        else:
            nodes.append(evidence_from_json(answer, f"evidence of {host}"))
    return tuple(nodes), tuple(failures)


def _status(report: Report, failures: Sequence[str]) -> int:
    found = [*report.ring, *(item for node in report.nodes for item in node.findings)]
    if any(item.severity != "note" for item in found):
        return FINDINGS
    return COULD_NOT_LOOK if failures or any(node.unknown for node in report.nodes) else FINE


def _document(report: Report, failures: Sequence[str], said: str) -> str:
    raw = {"schema": SCHEMA, "verdict": said, "nodes": report.nodes, "ring": report.ring, "failures": failures}
    return json.dumps(msgspec.to_builtins(raw), indent=2)


def _print(lines: Iterable[str]) -> None:
    """Write to standard output at once, so that a disk that is full is noticed here and not when Python ends."""
    if sys.stdout is None:  # what Python makes of a closed one
        raise OSError(0, "it is closed")
    for line in lines:
        print(line)
    sys.stdout.flush()


def _drop_output() -> None:
    """Send what is still buffered nowhere, or Python would fail once more on it when it ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
