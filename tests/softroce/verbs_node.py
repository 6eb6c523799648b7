"""One rank of test_verbs.py: a session over verbs from a plan, all-reduces whose every element is checked, and what the
rank says about it as JSON. Ranks meet through files, so that nothing but the session costs time.

    verbs_node.py FOLDER RANK PLAN SECONDS [HOW]

HOW "torn": the litmus of rank 0 reports a flag before its payload for every first way of arrival.
"""

from __future__ import annotations

import ctypes as ct
import json
import logging
import sys
import time
from pathlib import Path

from roce_ring import litmus
from roce_ring.errors import RoceRingError
from roce_ring.modes import modes
from roce_ring.native import ALL_REDUCE, DTYPES, Op
from roce_ring.session import Session
from roce_ring.settings import Settings
from roce_ring.topology import Topology

COUNT = 4000


class FileExchange:
    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self._folder, self.rank, self.world, self._round = folder, rank, world, 0

    def all_gather(self, payload: bytes, timeout_s: float) -> list[bytes]:
        self._round += 1
        part = self._folder / f"part.{self.rank}"
        part.write_bytes(payload)
        part.rename(self._folder / f"{self._round}.{self.rank}")
        files = [self._folder / f"{self._round}.{rank}" for rank in range(self.world)]
        deadline = time.monotonic() + timeout_s
        while not all(file.exists() for file in files):
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {self.rank}: somebody did not come to round {self._round}")
            time.sleep(0.005)
        return [file.read_bytes() for file in files]

    def barrier(self, timeout_s: float) -> None:
        self.all_gather(b"", timeout_s)

    def close(self) -> None:
        pass


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def tear(exchange: FileExchange) -> None:
    true = litmus._run

    def run(exchange: object, proxy: int | None, imm: bool, timeout_s: float) -> list[bytes]:
        seen = true(exchange, proxy, imm, timeout_s)  # type: ignore[arg-type]
        return seen if imm else [seen[0].replace(bytes([litmus.RIGHT]), bytes([litmus.TORN])), *seen[1:]]

    litmus._run = run


def operate(session: Session, seconds: float) -> tuple[int, int]:
    """How many all-reduces, and how many wrong elements. All ranks run the same number: what rank 0's clock says goes
    round in the first element."""
    mine, out = (ct.c_float * COUNT)(), (ct.c_float * COUNT)()
    until, done, wrong, going = time.monotonic() + seconds, 0, 0, True
    names = list(modes().values())
    while going:
        mode = names[done % len(names)]
        op: Op = session.op()
        setattr(op, "in", ct.addressof(mine))
        op.out, op.count, op.rows = ct.addressof(out), COUNT, 1
        op.kind, op.dtype = ALL_REDUCE, DTYPES["float32"]
        op.mode = mode.value if not mode.refusal(session.world) else names[0].value
        mine[0] = float(session.rank == 0 and time.monotonic() >= until)
        for i in range(1, COUNT):
            mine[i] = float((done * 31 + session.rank * 7 + i) % 509)
        session.run(op)
        for i in range(1, COUNT):
            wrong += out[i] != sum(float((done * 31 + rank * 7 + i) % 509) for rank in range(session.world))
        done, going = done + 1, out[0] == 0
    return done, wrong


def main() -> None:
    folder, rank, plan, seconds, *how = sys.argv[1:]
    kept = Kept()
    logging.getLogger().addHandler(kept)
    logging.getLogger().setLevel(logging.INFO)
    settings = Settings(provider="verbs", plan=plan, max_bytes=4 * COUNT, dead_peer_s=2.0)
    world = json.loads(Path(plan).read_text())["hosts"]
    exchange = FileExchange(Path(folder), int(rank), len(world))
    if how == ["torn"]:
        tear(exchange)
    said: dict[str, object] = {}
    try:
        topology = Topology.from_settings(settings, int(rank), len(world))
        session = Session(exchange, settings, topology, serve=False)
        try:
            said["arrival"] = session.control.info().arrival_mode
            said["litmus"] = session.control.info().litmus_verdict
            said["reason"] = session.control.state().reason
            Path(folder, f"up.{rank}").touch()
            said["ops"], said["wrong"] = operate(session, float(seconds))
            said["after"] = session.control.state().reason
        finally:
            session.close()
    except RoceRingError as failed:
        said["error"], said["code"], said["at"] = str(failed), failed.code, time.time()
    print(json.dumps(said | {"log": kept.lines}))


if __name__ == "__main__":
    main()
