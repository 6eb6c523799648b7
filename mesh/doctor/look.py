#!/usr/bin/env python3
"""Everything the doctor wants to know of one machine, as JSON. Reads only.

Like ``inventory`` it needs nothing but the standard library; ``bundle`` sends it with its companions over ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

from .. import inventory
from . import look_functions, look_host, look_network
from .machine import Json, Machine, Run

SCHEMA = "roce-ring/evidence/v1"


def gather(host: str = "", interval_s: float = 0.0, root: Path = Path("/"), run: Run = inventory.run_command) -> Json:
    """The evidence of this machine in the form of :class:`mesh.doctor.evidence.Evidence`.

    ``interval_s``: counters are read twice, so far apart, and ``growth`` says what was added in between. With 0 that is
    unknown. ``root`` and ``run``: where files and answers come from instead, for tests.
    """
    machine = Machine(root, run)
    functions, problems = look_functions.functions(machine)
    began = time.monotonic()
    first = look_functions.counters(machine, functions), look_network.forwarded(machine)
    evidence = {
        "schema": SCHEMA,
        "host": host or socket.gethostname().split(".")[0],
        "interval_s": interval_s,
        "functions": functions,
        "problems": problems,
        **look_network.network(machine, functions),
        **look_host.host(machine),
    }
    _growth(machine, evidence, first, interval_s, began)
    return {**evidence, "unknown": machine.unknown}


def _growth(
    machine: Machine, evidence: Json, first: tuple[dict[str, Json], int | None], interval_s: float, began: float
) -> None:
    """Fill in counters, and what they gained since ``first``."""
    counters, forwarded = first
    grown: dict[str, Json] = {}
    evidence["forwarded_growth"] = None
    if interval_s > 0:
        time.sleep(max(0.0, interval_s - (time.monotonic() - began)))
        fresh = Machine(machine.root, machine.again)
        now, forwarded_now = look_functions.counters(fresh, evidence["functions"]), look_network.forwarded(fresh)
        for rdma, values in now.items():
            before = counters.get(rdma, values)
            grown[rdma] = {name: value - before.get(name, value) for name, value in values.items()}
        if forwarded is not None and forwarded_now is not None:
            evidence["forwarded_growth"] = forwarded_now - forwarded
        evidence["interval_s"] = round(time.monotonic() - began, 2)
    else:
        machine.note("growth", ["the counters were read only once; ask for an interval"])
    for port in evidence["functions"]:
        port["counters"] = counters.get(port["rdma"], {})
        port["growth"] = grown.get(port["rdma"], {})


def main(argv: list[str] | None = None) -> int:
    """Print this machine's evidence. Exit status 2 if it cannot be printed."""
    parser = argparse.ArgumentParser(description="Print one machine's evidence for the doctor, as JSON; reads only.")
    parser.add_argument("--host", default="", help="name of the node (default: this machine's host name)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks at the counters")
    options = parser.parse_args(argv)
    evidence = gather(options.host, options.interval)
    try:
        print(json.dumps(evidence))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: standard output cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    return 0
