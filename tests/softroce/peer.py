"""An independent rank 1 of 2: speaks the wire protocol with pyverbs, numpy and gRPC, and nothing of ours but the
rendezvous's message types. What it knows is docs/protocol.md and proxy/include/roce_ring/layout.h, whose tables of
fields it reads. `peer.py FACTS`: a JSON file of what an operator would have told it (see test_peer.py).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import struct
import sys
import time
import zlib
from pathlib import Path
from typing import Any

sys.path.append("/usr/lib/python3/dist-packages")  # Debian's pyverbs; ours come first

import grpc
import numpy as np
from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from roce_ring.control.proto.roce_ring.v1 import rendezvous_service_pb2 as pb
from roce_ring.control.proto.roce_ring.v1 import rendezvous_service_pb2_grpc as pb_grpc

LAYOUT_H = Path(__file__).parents[2] / "proxy" / "include" / "roce_ring" / "layout.h"
MAGIC, WIRE_VERSION, LINE, PAGE, MAX_WORLD, MAX_PATHS, SLOTS = 0x474E495245434F52, 3, 128, 4096, 16, 4, 2
COMMANDS = RECORDS = 256
RANK, PEER, WORLD, PATIENCE_S = 1, 0, 2, 30.0
ROUNDS, MOST_LITMUS_BYTES, RIGHT = 16, 16384, 1
MASK = (1 << 64) - 1


# ---- layout.h ----


def fields() -> dict[tuple[str, str], tuple[int, int]]:
    """(struct, field) -> (offset, bytes); (struct, "-") -> (0, bytes). In the header's order."""
    text = LAYOUT_H.read_text()
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, field, at, size in re.findall(r"X\((rr_\w+), (\w+), (\d+), (\d+)\)", text):
        found[name, field] = int(at), int(size)
    for name, size in re.findall(r"X\((rr_\w+), (\d+|RR_LINE)\)", text):
        found[name, "-"] = 0, LINE if size == "RR_LINE" else int(size)
    return found


FIELDS = fields()


def size_of(name: str) -> int:
    return FIELDS[name, "-"][1]


def pack(name: str, into: bytearray, base: int = 0, **values: int | bytes) -> None:
    for field, value in values.items():
        at, size = FIELDS[name, field]
        into[base + at : base + at + size] = (
            value.ljust(size, b"\0") if isinstance(value, bytes) else value.to_bytes(size, "little")
        )


def up(value: int, step: int) -> int:
    return -(-value // step) * step


def layout_of(slot_bytes: int) -> dict[str, int]:
    phases = max(2 * (WORLD - 1), 4 * (WORLD - 1).bit_length(), 4)
    sizes = {
        "commands": COMMANDS * size_of("rr_command"),
        "abort": size_of("rr_abort"),
        "kernel": size_of("rr_kernel_line"),
        "progress": size_of("rr_progress"),
        "notices": WORLD * size_of("rr_notice"),
        "waits": WORLD * MAX_PATHS * size_of("rr_wait_line"),
        "flags": WORLD * SLOTS * phases * MAX_PATHS * size_of("rr_flag"),
        "records": RECORDS * size_of("rr_record"),
    }
    out, at = {"world": WORLD, "slot_bytes": slot_bytes, "phases": phases}, PAGE
    for part, size in sizes.items():
        out[part], at = at, at + size
    out["send"] = up(at, PAGE)
    out["recv"] = out["send"] + SLOTS * 2 * slot_bytes
    out["region_bytes"] = out["recv"] + SLOTS * WORLD * slot_bytes
    return out


def layout_hash(layout: dict[str, int]) -> int:
    text = "".join(f"{name} {field} {at} {size}\n" for (name, field), (at, size) in FIELDS.items())
    constants = struct.pack("<7I", WIRE_VERSION, LINE, MAX_WORLD, MAX_PATHS, SLOTS, COMMANDS, RECORDS)
    hashed = 0xCBF29CE484222325
    for byte in text.encode() + constants + struct.pack(f"<{len(layout)}Q", *layout.values()):
        hashed = (hashed ^ byte) * 0x100000001B3 & MASK
    return hashed


# ---- meeting ----


class Meeting:
    """The rendezvous as its .proto says."""

    def __init__(self, address: str, job: str) -> None:
        self._stub = pb_grpc.RendezvousServiceStub(grpc.insecure_channel(address))
        joined = pb.JoinRequest(job=job, rank=RANK, world=WORLD, host="peer", pid=os.getpid(), rendezvous_version=1)
        self._stream = self._stub.Join(joined, wait_for_ready=True)
        self._token = next(self._stream).member_token
        self._round = 0

    def gather(self, payload: bytes = b"") -> list[bytes]:
        asked = pb.AllGatherRequest(
            member_token=self._token, round=self._round, payload=payload, timeout_ms=int(PATIENCE_S * 1000)
        )
        self._round += 1
        return list(self._stub.AllGather(asked, timeout=PATIENCE_S).payloads)

    def errors(self) -> None:
        """We have none."""
        said = [one.decode() for one in self.gather() if one]
        assert not said, said

    def leave(self) -> None:
        self._stub.Leave(pb.LeaveRequest(member_token=self._token), timeout=5)
        self._stream.cancel()


# ---- verbs ----


class Way:
    """One path: a device, the region registered with it, and an RC queue pair."""

    def __init__(self, device: str, address: str, region: Any) -> None:
        self.context = Context(name=device)
        self.gid, self.gid_index = self._find_gid(address)
        self.mtu = self.context.query_port(1).active_mtu
        self._pd = PD(self.context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        self.mr = MR(self._pd, region.nbytes, access, address=region.ctypes.data)
        self._cq = CQ(self.context, 64)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=QPCap(max_send_wr=64, max_recv_wr=1))
        self.qp = QP(self._pd, init)
        self.psn = secrets.randbits(24)
        attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.pkey_index = 0
        self.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)

    def _find_gid(self, address: str) -> tuple[bytes, int]:
        wanted = bytes(10) + b"\xff\xff" + socket.inet_aton(address)
        for index in range(16):
            gid = bytes.fromhex(str(self.context.query_gid(1, index)).replace(":", ""))
            if gid == wanted:
                return gid, index
        raise AssertionError(f"no GID for {address}")

    def connect(self, gid: bytes, qpn: int, psn: int, mtu: int, flow_label: int = 0) -> None:
        text = ":".join(gid[i : i + 2].hex() for i in range(0, 16, 2))
        route = GlobalRoute(dgid=GID(text), sgid_index=self.gid_index)
        route.flow_label = flow_label
        route.hop_limit = 64
        attr = QPAttr(qp_state=e.IBV_QPS_RTR, path_mtu=min(mtu, self.mtu))
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.dest_qp_num, attr.rq_psn, attr.max_dest_rd_atomic, attr.min_rnr_timer = qpn, psn, 1, 12
        mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        self.qp.modify(attr, mask | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = self.psn, 16, 6, 0, 1
        mask = e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN
        self.qp.modify(attr, mask | e.IBV_QP_MAX_QP_RD_ATOMIC)

    def write(self, at: int, size: int, to: int, key: int) -> None:
        request = SendWR(num_sge=1, sg=[SGE(at, size, self.mr.lkey)], opcode=e.IBV_WR_RDMA_WRITE)
        request.set_wr_rdma(key, to)
        self.qp.post_send(request)

    def done(self, count: int) -> None:
        """Waits for this many acknowledgements."""
        deadline = time.monotonic() + PATIENCE_S
        while count:
            assert time.monotonic() < deadline, "no acknowledgement"
            found, completions = self._cq.poll(8)
            for one in completions[:found]:
                assert one.status == e.IBV_WC_SUCCESS, one
            count -= found
            if not found:
                time.sleep(0.0005)


# ---- the protocol ----


class Peer:
    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.layout = layout_of(up(facts["max_bytes"], PAGE) + PAGE)
        # one page more than a region: flags wait there for their turn on the wire
        self._room = np.zeros(self.layout["region_bytes"] + 2 * PAGE, np.uint8)
        skip = -self._room.ctypes.data % PAGE
        self.region = self._room[skip : skip + self.layout["region_bytes"] + PAGE]
        self.ways = [Way(device, address, self.region) for device, address in facts["paths"]]
        self.meeting = Meeting(facts["meet"], facts["agreement"]["name"])

    def come_up(self) -> None:
        """The rounds of "Meeting" in docs/protocol.md."""
        meet = self.meeting
        meet.gather()
        meet.errors()  # topology
        any_layout = layout_of(2 * PAGE)
        agreed = {"wire version": WIRE_VERSION, "layout hash": f"{layout_hash(any_layout):016x}"}
        meet.gather(json.dumps(self.facts["agreement"] | agreed).encode())
        session = meet.gather(secrets.token_bytes(16) + b"peer")[PEER][:16]
        for _ in ("problems", "lease", "devices"):
            meet.errors()
        self._connect(meet.gather(self._hello(session))[PEER])
        meet.errors()
        self._litmus()
        verdicts = bytearray(MAX_WORLD * MAX_PATHS)
        verdicts[PEER * MAX_PATHS : PEER * MAX_PATHS + len(self.ways)] = bytes([RIGHT] * len(self.ways))
        theirs = meet.gather(bytes(verdicts))[PEER]
        assert theirs[RANK * MAX_PATHS : RANK * MAX_PATHS + len(self.ways)] == bytes([RIGHT] * len(self.ways)), theirs
        self.region[self.layout["flags"] : self.layout["records"]] = 0
        meet.errors()  # ladder
        meet.gather(json.dumps({"ladder": self.facts["ladder"]}).encode())
        for _ in ("start", "control"):
            meet.errors()

    def _hello(self, session: bytes) -> bytes:
        out = bytearray(size_of("rr_hello"))
        pack(
            "rr_hello", out, magic=MAGIC, wire_version=WIRE_VERSION, hello_bytes=len(out), world=WORLD, rank=RANK,
            layout_hash=layout_hash(self.layout), session=session, slot_bytes=self.layout["slot_bytes"],
            region_bytes=self.layout["region_bytes"], region_addr=self.region.ctypes.data,
            process_token=secrets.randbits(64), pid=os.getpid(), provider=2,
            stripe_min_bytes=self.facts["agreement"]["stripe_min_bytes"], host=b"peer",
            paths=bytes([len(self.ways)]),
        )  # fmt: skip
        for i, way in enumerate(self.ways):
            at = FIELDS["rr_hello", "path"][0] + (PEER * MAX_PATHS + i) * size_of("rr_hello_path")
            pack(
                "rr_hello_path", out, at, gid=way.gid, qpn=way.qp.qp_num, rkey=way.mr.rkey, psn=way.psn, mtu=way.mtu,
                hops=1,
            )  # fmt: skip
        return bytes(out)

    def _connect(self, hello: bytes) -> None:
        def number(name: str, field: str, base: int = 0) -> int:
            at, size = FIELDS[name, field]
            return int.from_bytes(hello[base + at : base + at + size], "little")

        self.base, self.keys = number("rr_hello", "region_addr"), []
        for i, way in enumerate(self.ways):
            at = FIELDS["rr_hello", "path"][0] + (RANK * MAX_PATHS + i) * size_of("rr_hello_path")
            end = {field: number("rr_hello_path", field, at) for field in ("qpn", "rkey", "psn", "mtu")}
            way.connect(hello[at : at + 16], end["qpn"], end["psn"], end["mtu"])
            self.keys.append(end["rkey"])

    def _flag(self, src: int, seq: int, phase: int, path: int) -> int:
        line = ((src * SLOTS + seq % SLOTS) * self.layout["phases"] + phase) * MAX_PATHS + path
        return self.layout["flags"] + line * size_of("rr_flag")

    def _slot(self, src: int, seq: int) -> int:
        return self.layout["recv"] + (seq % SLOTS * WORLD + src) * self.layout["slot_bytes"]

    def _send(self, path: int, seq: int, at: int, size: int, to: int, digest: int) -> None:
        """A payload and, behind it on the same queue pair, the flag of phase 0."""
        way, here = self.ways[path], self.region.ctypes.data
        scratch = self.layout["region_bytes"] + path * 8
        self.region[scratch : scratch + 8] = np.frombuffer(struct.pack("<Q", seq | digest << 48), np.uint8)
        if size:
            way.write(here + at, size, self.base + to, self.keys[path])
        way.write(here + scratch, 8, self.base + self._flag(RANK, seq, 0, path), self.keys[path])
        way.done(2 if size else 1)

    def _wait(self, path: int, seq: int, digest: int) -> None:
        at = self._flag(PEER, seq, 0, path)
        deadline = time.monotonic() + PATIENCE_S
        while (seen := int(self.region[at : at + 8].view(np.uint64)[0])) != seq | digest << 48:
            assert time.monotonic() < deadline, f"operation {seq} path {path}: flag is {seen:#x}"
            time.sleep(0.0005)

    def _litmus(self) -> None:
        slot = self.layout["slot_bytes"]
        size = min(MOST_LITMUS_BYTES, slot // MAX_PATHS, 2 * slot // (WORLD * MAX_PATHS)) & ~63
        for seq in range(1, ROUNDS + 1):
            for path in range(len(self.ways)):
                at = self.layout["send"] + seq % SLOTS * 2 * slot + (PEER * MAX_PATHS + path) * size
                self.region[at : at + size].view(np.uint64)[:] = canary(seq, RANK, path, size // 8)
                self._send(path, seq, at, size, self._slot(RANK, seq) + path * size, 0)
            for path in range(len(self.ways)):
                self._wait(path, seq, 0)
                at = self._slot(PEER, seq) + path * size
                assert (self.region[at : at + size].view(np.uint64) == canary(seq, PEER, path, size // 8)).all()

    def all_reduce(self, seq: int, mine: Any) -> Any:
        """Mode full, float32: rank 0's payload plus ours."""
        size, digest = mine.nbytes, digest_of_full(mine)
        at = self.layout["send"] + seq % SLOTS * 2 * self.layout["slot_bytes"]
        self.region[at : at + size].view(np.float32)[:] = mine
        cuts = stripes(size, len(self.ways), self.facts["agreement"]["stripe_min_bytes"])
        for path, (begin, end) in enumerate(cuts):
            self._send(path, seq, at + begin, end - begin, self._slot(RANK, seq) + begin, digest)
        for path in range(len(cuts)):
            self._wait(path, seq, digest)
        came = self._slot(PEER, seq)
        return self.region[came : came + size].view(np.float32) + mine


def canary(seq: int, src: int, path: int, count: int) -> Any:
    x = np.uint64(seq << 24 ^ src << 56 ^ path << 52) ^ np.arange(1, count + 1, dtype=np.uint64)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def stripes(size: int, paths: int, least: int) -> list[tuple[int, int]]:
    used = paths if size >= least and size >= 16 * paths else 1
    each, extra = divmod(size // 16, used)
    begins = [16 * (path * each + min(path, extra)) for path in range(used)]
    return list(zip(begins, [*begins[1:], size], strict=True))


def digest_of_full(x: Any) -> int:
    """Kind all-reduce (1), mode full (1), dtype float32 (1), wave 0, no fp32 partials."""
    golden = 0x9E3779B97F4A7C15
    tag = zlib.crc32(repr(("float32", x.shape)).encode())
    h = (1 << 24 | 1 << 16 | 1 << 8) + WORLD
    h = (h ^ x.size ^ tag << 32) * golden & MASK
    h = (h ^ h >> 29) * golden & MASK  # rows and pieces: none
    h = (h ^ h >> 29) * golden & MASK  # no norm
    return int(h) >> 48


def main() -> None:
    facts = json.loads(Path(sys.argv[1]).read_text())
    peer = Peer(facts)
    peer.come_up()
    wrong = 0
    for turn in range(facts["ops"]):
        index = np.arange(facts["count"])
        mine, theirs = (((index * 7 + 3 * (turn % 7) + rank) % 61 - 30).astype(np.float32) for rank in (RANK, PEER))
        wrong += int(np.count_nonzero(peer.all_reduce(turn + 1, mine) != mine + theirs))
    peer.meeting.leave()
    print(json.dumps({"ops": facts["ops"], "wrong": wrong}))


if __name__ == "__main__":
    main()
