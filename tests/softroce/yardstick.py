"""What the paths of a plan can do without us: raw RDMA writes over pyverbs. `yardstick.py FACTS PREFIX`, one per node.

Order N, PREFIX.N.json, says `rounds`. In each round every rank writes its stripe and a flag over every path to every
peer at once, as mode `full` does, and sleeps between looks until all flags of the round are here. Microseconds of each
round go to PREFIX.N.out.RANK.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.softroce.peer import PAGE, Way

LOOK_S = 0.0005  # what a waiting kernel of ours sleeps on a crowded host


class Yardstick:
    def __init__(self, facts: dict[str, Any], prefix: str) -> None:
        """`facts`: rank, bytes, ways = [[peer, number, device, address, flow label, bytes of the stripe], ...]."""
        self.rank, self.ways, slot = facts["rank"], [], facts["slot"]
        count = 16 * 4  # of (peer, path): stripes arrive at (their sender, path), flags after all of them
        room = np.zeros(count * slot + count * 8 + 2 * PAGE, np.uint8)
        self.region = room[-room.ctypes.data % PAGE :]
        self.base, self.slot, self.flags = self.region.ctypes.data, slot, count * slot
        for peer, number, device, address, label, size in facts["ways"]:
            self.ways.append((peer, number, Way(device, address, self.region), label, size))
        mine = {
            f"{self.rank}-{peer}-{number}": (way.gid.hex(), way.qp.qp_num, way.mr.rkey, way.psn, way.mtu, self.base)
            for peer, number, way, _, _ in self.ways
        }
        here = Path(f"{prefix}.hello.{self.rank}")
        here.with_suffix(".part").write_text(json.dumps(mine))
        here.with_suffix(".part").rename(f"{prefix}.hello.{self.rank}.json")
        everybody: dict[str, Any] = {}
        for rank in range(facts["world"]):
            everybody |= json.loads(wait_for(Path(f"{prefix}.hello.{rank}.json")))
        self.far = []
        for peer, number, way, label, _ in self.ways:
            gid, qpn, key, psn, mtu, base = everybody[f"{peer}-{self.rank}-{number}"]
            way.connect(bytes.fromhex(gid), qpn, psn, mtu, label)
            self.far.append((base, key))
        self.turn = 0

    def round(self) -> None:
        self.turn += 1
        self.region[self.flags + 63 * 8 : self.flags + 64 * 8].view(np.uint64)[0] = self.turn  # nobody's own place
        for (peer, number, way, _, size), (base, key) in zip(self.ways, self.far, strict=True):
            to = self.rank * 4 + number
            way.write(self.base + (peer * 4 + number) * self.slot, size, base + to * self.slot, key)
            way.write(self.base + self.flags + 63 * 8, 8, base + self.flags + to * 8, key)
        waiting = [(peer * 4 + number) * 8 + self.flags for peer, number, _, _, _ in self.ways]
        while waiting:
            waiting = [at for at in waiting if self.region[at : at + 8].view(np.uint64)[0] < self.turn]
            if waiting:
                time.sleep(LOOK_S)

    def settle(self) -> None:
        """The acknowledgements of a round; not timed, as a session takes them during what follows."""
        for _, _, way, _, _ in self.ways:
            way.done(2)


def wait_for(file: Path) -> str:
    while not file.exists():
        time.sleep(0.02)
    return file.read_text()


def main() -> None:
    facts, prefix = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]
    stick, number = Yardstick(facts, prefix), 0
    while True:
        number += 1
        rounds = json.loads(wait_for(Path(f"{prefix}.{number}.json")))["rounds"]
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            stick.round()
            took.append(round((time.perf_counter() - began) * 1e6))
            stick.settle()
        part = Path(f"{prefix}.{number}.part.{facts['rank']}")
        part.write_text(json.dumps(took))
        part.rename(f"{prefix}.{number}.out.{facts['rank']}")


if __name__ == "__main__":
    main()
