"""Run verbs_trial.c on a Soft-RoCE ring: one rank per node, all functions used, opposite nodes through their neighbour.

    python tests/softroce/run_trial.py --testbed RING_MODULE.py [--nodes 4] [--cpus 1] [trial options...]

Any Soft-RoCE testbed will do that can run a command in each node. What is asked of the module (it may also come
from ROCE_RING_SOFT_TESTBED): a class ``Ring(nodes=N, smp=CPUS, append=KERNEL_OPTIONS)``, a context manager, with
``spawn(node, command, timeout)``, ``result(id)`` giving (exit status, output), and ``run`` = both. Nodes: n0, n1, ...
Node K has the functions p0r, p1r (to node K+1, planes 0 and 1) and p0l, p1l (to node K-1), each with an RDMA device
nKpPS. The host's file system is visible in the nodes, and /tmp is shared between them. With the kernel option below a
node sees only its own devices.

Not part of the test suite: it needs that testbed. Exit status 0 if every rank ended well.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

REPO = Path(__file__).resolve().parents[2]
OWN_DEVICES_ONLY = "ib_core.netns_mode=0"
# The names that these functions have on a DGX Spark: index 2 * plane + port, port 0 leads to the next node.
REAL_NAMES = {"p0r": "rocep1s0f0", "p0l": "rocep1s0f1", "p1r": "roceP2p1s0f0", "p1l": "roceP2p1s0f1"}


def build() -> Path:
    """Compile the trial with the library's own sources; returns the program."""
    program = REPO / "build" / "softroce" / "verbs_trial"
    program.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(REPO / "tests/softroce/verbs_trial.c"), *map(str, sorted((REPO / "proxy/src").glob("*.c")))]
    includes = ["-I", str(REPO / "proxy/include"), "-I", str(REPO / "proxy/src")]
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-DRR_HAVE_VERBS=1", "-pthread"]
    subprocess.run(["cc", *flags, *includes, *sources, "-o", str(program), "-ldl"], check=True)
    return program


def peer_map(rank: int, world: int) -> str:
    """Devices (indices of REAL_NAMES) of both paths to each peer. Opposite nodes of four: plane 0 goes through the node
    after the lower one, plane 1 through the node before it, so that both directions share their middle node."""
    items = []
    for peer in range(world):
        distance = (peer - rank) % world
        if distance == 0:
            continue
        if distance == 1 and (world > 2 or rank == 0):
            devices = "0/2"
        elif distance == world - 1:
            devices = "1/3"
        elif world == 4:
            devices = "0/3" if rank < peer else "1/2"
        else:
            raise SystemExit(f"run_trial.py knows rings of 2 to 4 nodes; {world} asked for")
        items.append(f"{peer}={devices}")
    return ",".join(items)


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("softroce_testbed", path)
    if spec is None or spec.loader is None or not Path(path).exists():
        raise SystemExit(f"{path} is not a Python module; --testbed names the Soft-RoCE testbed's")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use_real_names(ring: Any, nodes: int) -> None:
    for n in range(nodes):
        status, output = ring.run(f"n{n}", "; ".join(f"rdma dev set n{n}{f} name {r}" for f, r in REAL_NAMES.items()))
        if status:
            raise SystemExit(f"n{n}: RDMA devices cannot be renamed: {output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="other options go to verbs_trial")
    default = os.environ.get("ROCE_RING_SOFT_TESTBED")
    parser.add_argument("--testbed", default=default, help="the testbed's Python module")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--python", action="store_true", help="run allreduce_node.py instead, with this Python")
    parser.add_argument("--faults", default="", help="shell commands run in node n0 a second after all ranks connected")
    options, trial = parser.parse_known_args()
    if not options.testbed:
        parser.error(
            "--testbed (or ROCE_RING_SOFT_TESTBED) is missing: the path of a Soft-RoCE testbed's Python module"
        )
    node_python = f"PYTHONPATH={REPO} {sys.executable} {REPO}/tests/softroce/allreduce_node.py"
    program = node_python if options.python else str(build())
    failed = False
    with load(options.testbed).Ring(nodes=options.nodes, smp=options.cpus, append=OWN_DEVICES_ONLY) as ring:
        use_real_names(ring, options.nodes)
        ring.run(None, "mkdir -p /tmp/trial")
        names = ",".join(REAL_NAMES[f] for f in ("p0r", "p0l", "p1r", "p1l"))
        jobs = []
        for rank in range(options.nodes):
            place = f"--rank {rank} --world {options.nodes} --dir /tmp/trial"
            ways = f"--hca {names} --map '{peer_map(rank, options.nodes)}'"
            jobs.append(ring.spawn(f"n{rank}", f"{program} {place} {ways} {' '.join(trial)}", 120))
        if options.faults:
            up = f"until [ $(ls /tmp/trial/connected.* | wc -l) -eq {options.nodes} ]; do sleep 0.1; done 2>/dev/null"
            print("faults:", *ring.run("n0", f"{up}; sleep 1; date +%s.%3N; {options.faults}"))
        for rank, job in enumerate(jobs):
            status, output = ring.result(job)
            failed |= status != 0
            print(f"n{rank}: exit status {status}\n{output}", end="")
        count = "for f in p0l p0r p1l p1r; do echo $f $(tc -s filter show dev $f ingress | grep -o 'Sent.*pkt'); done"
        for node in range(options.nodes):
            print(f"n{node} forwarded:", ", ".join(ring.run(f"n{node}", count)[1].splitlines()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
