"""The protocol is what docs/protocol.md says: a rank on pyverbs, with none of our code, sums with one of ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from roce_ring import __version__
from roce_ring.ladder.choose import choose
from roce_ring.ladder.model import Key
from roce_ring.settings import Settings
from tests.softroce import byhand
from tests.softroce.ranks import ROOT, Ranks
from tests.softroce.ring import Ring

RING = (2, 1)  # two cables: two paths
COUNT, OPS = 10001, 20  # 40004 bytes: cut over both paths, unevenly


@pytest.mark.skipif(
    not list(Path("/usr/lib/python3/dist-packages/pyverbs").glob(f"qp.cpython-3{sys.version_info.minor}-*.so")),
    reason="needs pyverbs of this Python: apt-get install python3-pyverbs (Debian 12: Python 3.11)",
)
def test_a_rank_with_none_of_our_code_sums_with_ours(ring: Ring) -> None:
    for node in ring.nodes:
        byhand.apply(node)
    ranks = Ranks(ring)
    ranks.kill(1)  # pyverbs takes its place
    meet = "unix:/ring/meet-peer"
    settings = Settings(provider="verbs")
    agreement = settings.agreement() | {
        "version": __version__,
        "world": 2,
        "device": "cpu",
        "plan hash": ring.plan.hash,
        "ring order": ",".join(map(str, ring.plan.ring)),
        "first sequence": 0,
        "gather_bytes": "the same as max_bytes",
    }
    ladder = choose("", "roce-switch", Key(world=2, device="cpu"), settings.max_bytes).ladder
    hcas = ring.nodes[1].plan.hcas
    ways = [hcas[path.source_hca] for path in ring.plan.paths if path.source == 1]
    facts = {
        "meet": meet,
        "agreement": agreement,
        "ladder": f"roce-switch {ladder.digest}",
        "max_bytes": settings.max_bytes,
        "paths": [(hca.rdma, hca.address.split("/")[0]) for hca in ways],
        "count": COUNT,
        "ops": OPS,
    }
    (ring.guest.share / "facts.json").write_text(json.dumps(facts))
    peer = ring.nodes[1].spawn(f"PYTHONPATH={ROOT} {sys.executable} {ROOT}/tests/softroce/peer.py /ring/facts.json", 50)
    ranks.start(meet=meet, ops=OPS, bytes=4 * COUNT, modes=["full"])
    said = json.loads(peer.wait().check().splitlines()[-1])
    assert said == {"ops": OPS, "wrong": 0}
    [ours] = ranks.finish(without=1)
    assert (ours["error"], ours["ops"], ours["wrong"]) == (None, OPS, 0)
