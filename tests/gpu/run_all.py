"""Everything that needs a GPU, in one call, with one report.

    python tests/gpu/run_all.py [STEP ...] [--full] [--limit SECONDS] [--soak SECONDS] [--report FILE]

By default every step once, with fewer sizes and replays: within 9 minutes on an H200. --full leaves nothing out.
--soak: also 100,000 replays of graphs by ranks that pause at random, for at most that long. The package must be
installed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURE = "figure: "  # a script's line for the table at the top: what | at most | measured
STEP_LIMIT_S = 100.0  # unless --full: one that hangs leaves the others their time
PROGRAM = ["-m", "roce_ring.cli.main"]
BENCH = [*PROGRAM, "bench", "--device", "cuda"]
ON_GPU = ["--device", "cuda", "--share", "mps"]
ALL = ["--dtype", "all", "--op", "all", "--mode", "all"]
SANITIZER = ["compute-sanitizer", "--target-processes", "all", "--error-exitcode", "9", "--tool"]
# Processes that take turns: under a sanitizer kernels of one process do not run at the same time.
FEW = [*BENCH, "--local", "2", "--share", "processes", "--sizes", "17,60K", "--op", "all", "--iters", "1"]
PCIE = [*FEW, "--provider", "pcie"]
SOME = ["--mode", "full,payload_rsag,ring"]
SOME_PCIE = ["--mode", "full,payload_rsag,bulk_push,pull"]


@dataclass(frozen=True)
class Step:
    """`quick`: added unless --full. `under`: a program that runs Python."""

    command: list[str]
    quick: list[str]
    under: tuple[str, ...] = ()


def script(name: str, *options: str, quick: tuple[str, ...] = ()) -> Step:
    return Step([str(HERE / name), *options], list(quick))


STEPS = {
    "eager": script("eager.py"),
    "bench": Step([*BENCH, "--share", "mps", "--sizes", "4,4K,16K,60K,256K,1M", "--mode", "all", "--profile"], []),
    "bench check": Step(
        [*BENCH, "--share", "mps", "--sizes", "1,17,4K,100001", "--check", *ALL],
        ["--iters", "2"],
    ),
    "memcheck": Step([*FEW, "--mode", "all"], SOME, (*SANITIZER, "memcheck")),
    "memcheck pcie": Step([*PCIE, "--mode", "all"], SOME_PCIE, (*SANITIZER, "memcheck")),
    "racecheck": Step([*FEW, "--mode", "all"], SOME, (*SANITIZER, "racecheck")),
    "racecheck pcie": Step([*PCIE, "--mode", "all"], SOME_PCIE, (*SANITIZER, "racecheck")),
    "graphs": script("graphs.py"),
    "graphs pcie": script("graphs.py", "--provider", "pcie"),
    "bounds": script("bounds.py"),
    "bounds pcie": script("bounds.py", "--provider", "pcie"),
    "exact": script("exact.py", quick=("--quick",)),
    "exact pcie": script("exact.py", "--provider", "pcie", quick=("--quick",)),
    "fused": script("fused.py", quick=("--only", "exact")),
    "fused pcie": script("fused.py", "--provider", "pcie", quick=("--only", "exact")),
    "latency": script("latency.py", quick=("--quick", "--blocks", "1,4", "--replays", "30")),
    "peer": script("peer.py", quick=("--quick",)),
    "torch": script("torch_group.py"),
    "stall": Step([*PROGRAM, "stall", "record", "--device", "cuda", "--pattern", "all"], ["--seconds", "0.5"]),
    "sweep": Step([*PROGRAM, "ladder", "sweep", "--quick", "--provider", "pcie", *ON_GPU], ["--sizes", "4K"]),
}  # fmt: skip


def facts() -> list[str]:
    import cupy as cp

    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    runtime = cp.cuda.runtime
    return [
        f"{runtime.getDeviceProperties(0)['name'].decode()}, CUDA {runtime.runtimeGetVersion()}, CuPy {cp.__version__}",
        f"{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, commit {commit.stdout.strip() or 'unknown'}",
        f"command: python {' '.join(['tests/gpu/run_all.py', *sys.argv[1:]])}",
    ]


def run(command: list[str], limit_s: float, lines: list[str]) -> int:
    """Exit status, negative after the limit. What it prints is shown as it comes, and added to `lines`."""
    with subprocess.Popen(
        command, cwd=HERE.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as running:
        # The whole group, for what a sanitizer or a script has started; first so that ranks and an MPS daemon end.
        ends = ((limit_s, signal.SIGTERM), (limit_s + 15, signal.SIGKILL))
        timers = [threading.Timer(after_s, os.killpg, (running.pid, number)) for after_s, number in ends]
        for one in timers:
            one.start()
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
        status = running.wait()
        for one in timers:
            one.cancel()
    return status


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--full", action="store_true", help="all sizes and replays")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds for all steps together")
    parser.add_argument("--soak", type=float, default=0.0, help="seconds for 100,000 replays with random pauses")
    given = parser.parse_args()
    if unknown := set(given.steps) - set(STEPS):
        parser.error(f"no step is called {', '.join(sorted(unknown))}; expected some of {', '.join(STEPS)}")
    steps = {name: step for name, step in STEPS.items() if name in (given.steps or STEPS)}
    if given.soak:
        steps["soak"] = script("graphs.py", "--soak", str(given.soak))
    deadline = time.monotonic() + given.limit + given.soak
    lines, outcome = ["# GPU tests and figures", "", *(f"- {fact}" for fact in facts()), ""], {}
    for name, step in steps.items():
        began = time.monotonic()
        lines += [f"## {name}", "", "```"]
        print(f"## {name}", flush=True)
        command = [*step.under, sys.executable, *step.command, *([] if given.full else step.quick)]
        left = deadline - began if given.full or name == "soak" else min(deadline - began, STEP_LIMIT_S)
        status = run(command, left, lines) if left > 1 else None
        said = "no time left" if status is None else "ok" if status == 0 else f"FAILED with status {status}"
        outcome[name] = f"{said}, {time.monotonic() - began:.0f} s"
        print(f"-- {name}: {outcome[name]}", flush=True)
        lines += ["```", "", outcome[name], ""]
        if given.report:  # after every step: what is there counts if a later one is cut off
            table = ["| step | outcome |", "|---|---|", *(f"| {one} | {what} |" for one, what in outcome.items()), ""]
            table += ["| figure | at most | measured |", "|---|---|---|"]
            table += [f"| {one.removeprefix(FIGURE)} |" for one in lines if one.startswith(FIGURE)] + [""]
            given.report.write_text("\n".join([*lines[:6], *table, *lines[6:]]))
    failed = [name for name, what in outcome.items() if not what.startswith("ok")]
    print(f"gpu: {'FAILED: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
