"""verbs_trial.c on a ring: one rank per node over all planned paths, every byte checked, no Python in the ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.softroce.guest import Job
from tests.softroce.ring import Ring

REPO = Path(__file__).resolve().parents[2]


def build() -> Path:
    """Compile the trial with the library's own sources; returns the program."""
    program = REPO / "build" / "softroce" / "verbs_trial"
    program.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(REPO / "tests/softroce/verbs_trial.c"), *map(str, sorted((REPO / "proxy/src").glob("*.c")))]
    includes = ["-I", str(REPO / "proxy/include"), "-I", str(REPO / "proxy/src")]
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-DRR_HAVE_VERBS=1", "-pthread"]
    subprocess.run(["cc", *flags, *includes, *sources, "-o", str(program), "-ldl"], check=True)
    return program


def start(ring: Ring, options: str, limit_s: float = 30) -> list[Job]:
    """Its ranks, by rank, with ``options`` of verbs_trial.c (--ops, --rounds, --bytes, --window, ...)."""
    ring.guest.run("mkdir -p /tmp/trial && rm -f /tmp/trial/*").check()
    common = f"{build()} {options} --world {len(ring.nodes)} --dir /tmp/trial"
    jobs = []
    for node in ring.nodes:
        names = ",".join(hca.rdma for hca in node.plan.hcas)
        ways = peer_map(ring, node.plan.rank)
        jobs.append(node.spawn(f"{common} --rank {node.plan.rank} --hca {names} --map '{ways}'", limit_s))
    return jobs


def peer_map(ring: Ring, rank: int) -> str:
    """Indices of the devices of every path to each peer: "1=0/2,3=1/3"."""
    devices: dict[int, list[str]] = {}
    for path in ring.plan.paths:
        if path.source == rank:
            devices.setdefault(path.target, []).append(str(path.source_hca))
    return ",".join(f"{peer}={'/'.join(indices)}" for peer, indices in devices.items())
