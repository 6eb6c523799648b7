"""What one GPU may do to others' memory, by what a child process (gpu/p2p.py) found: given up where it hangs, and asked
again for what it then had not tried."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress

from .p2p import PRIMITIVES

LIMIT_S = 60.0  # for everything
BEGIN_S = 40.0  # until a child is ready: it starts CUDA
STEP_S = 10.0  # for one try; its kernels give themselves up after 5 s
_KILLED_S = 2.0  # a process that the driver holds may not even die: then it is left
CHILD = (sys.executable, "-m", "roce_ring.gpu.p2p")

Verdict = dict[str, str]  # from, to, and for each primitive what went wrong, or ""


def verdicts(mine: str, peers: Sequence[str], command: Sequence[str] = CHILD) -> list[Verdict]:
    """Of GPU `mine` to each of `peers`, by PCI bus id."""
    found: dict[str, dict[str, str]] = {to: {} for to in peers}
    deadline = time.monotonic() + LIMIT_S
    while missing := [(to, one) for to, done in found.items() for one in PRIMITIVES if one not in done]:
        wanted = {to: ",".join(one for name, one in missing if name == to) for to, _ in missing}
        ready, why = _ask([*command, mine, *(f"{to}={names}" for to, names in wanted.items())], found, deadline)
        missing = [(to, one) for to, one in missing if one not in found[to]]
        # It was at the first try without an answer; those of all pairs at once are one. Not even ready: at none.
        single = [one for one in missing if one[1] != "concurrent"]
        for to, primitive in single[:1] if ready and single else missing:
            found[to][primitive] = why
    return [{"from": mine, "to": to, **found[to]} for to in peers]


def worked(one: Verdict) -> bool:
    return not any(one[primitive] for primitive in PRIMITIVES)


def _ask(command: list[str], found: dict[str, dict[str, str]], deadline: float) -> tuple[bool, str]:
    """Fills in what the child says. (Whether it was ready to try anything, why it ended if it said too little)"""
    # The child looks devices up by bus id, so it has to see all of them.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        try:
            ready, hung = _listen(child, found, deadline)
        finally:
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_KILLED_S)
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:]
    return ready, hung or f"the test ended with status {child.returncode}" + "".join(f": {one[:200]}" for one in last)


def _listen(child: subprocess.Popen[bytes], found: dict[str, dict[str, str]], deadline: float) -> tuple[bool, str]:
    """Until it ends (then ""), or takes too long (then how long)."""
    assert child.stdout is not None
    begun, ready = b"", False
    with child.stdout as said, selectors.DefaultSelector() as waiting:
        os.set_blocking(said.fileno(), False)
        waiting.register(said, selectors.EVENT_READ)
        while True:
            patience, left = STEP_S if ready else BEGIN_S, deadline - time.monotonic()
            if left <= 0 or not waiting.select(min(patience, left)):
                return ready, f"hung for {patience:g} s" if left > patience else f"was not done after {LIMIT_S:g} s"
            raw = said.read()
            if not raw:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_KILLED_S)
                return ready, ""
            *lines, begun = (begun + raw).split(b"\n")
            ready = ready or bool(lines)
            for to, primitive, wrong in filter(None, map(json.loads, lines)):
                found[to][primitive] = wrong
