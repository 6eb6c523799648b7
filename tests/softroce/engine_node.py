"""One end of a ping-pong over the proxy alone, no kernel: `engine_node.py PLAN MEET BYTES ROUNDS`, on both nodes.

Publishes put commands, lends its thread to the proxy until the peer's flag is here, and prints microseconds one way
(half a round trip, as ib_write_lat counts) as JSON.
"""

from __future__ import annotations

import ctypes as ct
import json
import struct
import sys
import time

from roce_ring.bench.member import rank_here
from roce_ring.communicator import AllReduce
from roce_ring.native import native
from roce_ring.settings import Settings
from roce_ring.topology import plan_of

COMMAND = struct.Struct("<QQQIIHBBBBH")  # rr_command after its commit word
PUT, LINE, COMMANDS, SLOTS, MAX_PATHS = 3, 128, 256, 2, 4


def main() -> None:
    plan, meet, size, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rank = rank_here(plan_of(plan), plan)
    # one path, like ib_write_lat
    settings = Settings(provider="verbs", plan=plan, run_dir="/run/engine", stripe_min_bytes=1 << 20)
    with AllReduce.from_rendezvous(meet, rank, 2, settings=settings) as comm:
        session, peer = comm.session, 1 - rank
        layout, base = session.layout, session.region
        ring = [base + layout.commands + 64 * index for index in range(COMMANDS)]
        bodies = [(ct.c_uint8 * 56).from_address(line + 8) for line in ring]
        commits = [ct.c_uint64.from_address(line) for line in ring]
        flags = [
            ct.c_uint64.from_address(base + layout.flags + (peer * SLOTS + slot) * layout.phases * MAX_PATHS * LINE)
            for slot in range(SLOTS)
        ]
        lend, proxy = native().proxy.rr_proxy_lend, ct.c_void_p(session._proxy)
        lend.argtypes, lend.restype = [ct.c_void_p], None

        def put(seq: int) -> None:
            index, slot = (seq - 1) % COMMANDS, seq % SLOTS * 2
            source, target = layout.send + slot * layout.slot_bytes, layout.recv + (slot + rank) * layout.slot_bytes
            COMMAND.pack_into(bodies[index], 0, seq, source, target, size, 0, 1 << peer, PUT, 0, 0, 0, 0)
            commits[index].value = seq

        def wait(seq: int) -> None:
            flag = flags[seq % SLOTS]
            while flag.value != seq:
                lend(proxy)

        took = []
        began = time.perf_counter()
        for seq in range(1, rounds + 1):
            if rank == 0:
                put(seq)
                wait(seq)
            else:
                wait(seq)
                put(seq)
            if rank == 0:  # a system call here, where ib_write_lat reads a register
                ended = time.perf_counter()
                took.append((ended - began) / 2 * 1e6)
                began = ended
        until = time.monotonic() + 0.2  # the last put goes out
        while time.monotonic() < until:
            lend(proxy)
    print(json.dumps(took[rounds // 10 :]))


if __name__ == "__main__":
    main()
