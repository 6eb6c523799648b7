"""Everything that needs a GPU, in one call, with a report.

python tests/gpu/run_all.py [--report FILE] [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    # the command, and what makes it quick
    (["exact.py"], ["--quick"]),
    (["exact.py", "--provider", "pcie"], ["--quick"]),
    (["graphs.py"], ["--replays", "1000"]),
    (["graphs.py", "--provider", "pcie"], ["--replays", "1000"]),
    (["bounds.py"], []),
    (["bounds.py", "--provider", "pcie"], []),
    (["fused.py"], ["--only", "exact"]),
    (["fused.py", "--provider", "pcie", "--only", "exact"], []),
    (["latency.py"], ["--quick"]),
    (["peer.py"], ["--quick"]),
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer cases and replays")
    given = parser.parse_args()
    lines, failed = [], []
    for (name, *options), quick in SCRIPTS:
        script = " ".join((name, *options))
        command = [sys.executable, str(HERE / name), *options, *(quick if given.quick else [])]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        lines.append(f"-- {script}: exit status {running.returncode} after {time.monotonic() - began:.0f} s")
        print(lines[-1], flush=True)
        if running.returncode:
            failed.append(script)
        if given.report:  # after every script: what is there counts if a later one is cut off
            given.report.write_text("\n".join(lines) + "\n")
    print(f"gpu: {'FAILED: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
