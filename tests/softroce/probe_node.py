"""One end of test_probe.py: a probe in a node, which meets its peer through files in the shared directory.

    probe_node.py MEETING MINE THEIRS RDMA ADDRESS FLOW_LABEL [HOW]

Prints the result as JSON. HOW: "wrong-key" garbles the key in the peer's endpoint, "alone" never meets anybody.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from roce_ring.errors import SetupError
from roce_ring.probe import Probe

RKEY_AT = 16 + 20  # rr_endpoint.end, rr_hello_path.rkey


def put(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.rename(path)


def get(path: Path) -> bytes:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.005)
    return path.read_bytes()


def main() -> None:
    meeting, mine, theirs, rdma, address, label, *how = sys.argv[1:]
    place = Path(meeting)
    place.mkdir(exist_ok=True)
    with Probe(rdma, address, int(label)) as probe:
        put(place / f"endpoint.{mine}", probe.endpoint)
        peer = get(place / f"endpoint.{theirs}")
        if how == ["wrong-key"]:
            peer = peer[:RKEY_AT] + bytes(byte ^ 0xFF for byte in peer[RKEY_AT : RKEY_AT + 4]) + peer[RKEY_AT + 4 :]
        probe.connect(peer)
        put(place / f"connected.{mine}", b"")
        get(place / f"connected.{theirs}")
        began = time.monotonic()
        result = probe.write(count=5, size=4096, timeout_s=2.0)
        took = time.monotonic() - began
        try:
            probe.write(count=1)
            again = ""
        except SetupError as failed:
            again = str(failed)
        put(place / f"written.{mine}", b"")
        get(place / f"written.{theirs}")
    print(json.dumps({"ok": result.ok, "why": result.why, "us": result.latencies_us, "took": took, "again": again}))


if __name__ == "__main__":
    try:
        main()
    except SetupError as failed:
        print(json.dumps({"setup": str(failed)}))
