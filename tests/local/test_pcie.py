"""Provider pcie on CPU ranks: kernels reach each other's memory, no proxy moves bytes, and the bounds still hold. That
the results are right: test_results.py."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roce_ring.direct import problem
from roce_ring.errors import PeerDead, PeerTimeout, UnsupportedError
from tests.local.ranks import Rank, Starter

PCIE = {"provider": "pcie"}


def the_same_bits_as_through_a_proxy(me: Rank) -> None:
    from roce_ring.modes import modes

    with me.communicator(name="a") as shm:
        me.address = me.address.replace("meet", "meet-too")
        with me.communicator(name="b", provider="pcie") as pcie:
            for count in (3, 5000):
                x = np.random.default_rng([me.rank, count]).standard_normal(count).astype(np.float16)
                for name, mode in modes().items():
                    if mode.refusal(me.world, access=pcie.session.access):
                        continue
                    same = name if not mode.access else "payload_rsag"  # all raw modes give the same bits
                    assert pcie.all_reduce(x, mode=name).tobytes() == shm.all_reduce(x, mode=same).tobytes(), name
            moved = pcie.session.read_stats()
            assert (moved.commands, moved.bytes_written) == (0, 0), "a proxy moved bytes"
            info = pcie.session.control.info()
            assert (info.provider, info.memory_kind) == ("pcie", "shared memory")


def test_the_same_bits_as_through_a_proxy(start: Starter) -> None:
    """Who moves the bytes may not show in a result: an engine that changes the provider keeps its outputs."""
    start(the_same_bits_as_through_a_proxy, 4).values()


def reduce_for_ever(me: Rank, mode: str) -> None:
    with me.communicator() as ar:
        x = np.full(20_000, me.rank + 1, np.float32)
        for n in range(10**9):
            ar.all_reduce(x, mode=mode)
            if n == 50:
                me.say("running")


@pytest.mark.parametrize("mode", ["full_phased", "bulk_push", "pull"])
def test_a_killed_rank_is_named_within_five_seconds(start: Starter, mode: str) -> None:
    """Its memory is still mapped and still readable: only the watch can tell that nobody is behind it."""
    ranks = start(reduce_for_ever, 4, settings=PCIE, mode=mode)
    ranks.wait_for("running")
    killed = ranks.kill(2)
    for one in ranks.finish(allow=(r"a peer's process is gone",)):
        assert one.error and one.error.type == PeerDead.__name__ and one.error.culprit == 2, one.error
        assert one.ended - killed < 5.0


def comes_late(me: Rank) -> float:
    with me.communicator(late_s=0.3, peer_timeout_s=4.0) as ar:
        if me.rank == 1:
            time.sleep(1.0)
        total = ar.all_reduce(np.ones(10, np.float32), mode="bulk_push_phased")
        assert (total == me.world).all()
        reports = ar.session.read_stats().late_reports
        assert reports > 0 or me.rank == 1, "nobody said who was late"
        me.say("resolved")
        if me.rank == 1:
            me.wait()
            return 0.0
        began = time.monotonic()
        with pytest.raises(PeerTimeout) as caught:
            ar.all_reduce(total, mode="pull")
        assert caught.value.culprit == 1
        me.say("given up")
        return time.monotonic() - began


def test_a_late_rank_is_reported_and_one_that_never_comes_ends_the_wait(start: Starter) -> None:
    """The proxy thread still watches although it moves nothing; a sleeping kernel is woken by its peer's."""
    ranks = start(comes_late, 3, settings=PCIE)
    ranks.wait_for("given up", [0, 2])
    ranks.go([1])
    values = ranks.values(allow=(r"is late", r"came after", r"hard deadline"))
    assert all(3.5 < waited < 6.0 for rank, waited in enumerate(values) if rank != 1), values


def test_ranks_that_are_threads_of_one_process(tmp_path: Path) -> None:
    """As a test harness, or an engine with one process for all GPUs, has them."""
    from roce_ring import AllReduce
    from roce_ring.settings import Settings

    wrong: list[Any] = []

    def rank(r: int) -> None:
        settings = Settings(name="threads", provider="pcie", run_dir=str(tmp_path), late_s=10.0)
        with AllReduce.from_rendezvous(f"unix:{tmp_path}/threads", r, 4, settings=settings) as ar:
            for mode in ("full", "bulk_push", "bulk_pull", "ring"):
                total = ar.all_reduce(np.full(3001, r, np.float32), mode=mode)
                if not (total == 6).all():
                    wrong.append((r, mode, total))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert not wrong


def without_pcie(me: Rank) -> str:
    with me.communicator() as ar, pytest.raises(UnsupportedError) as caught:
        ar.all_reduce(np.ones(8, np.float32), mode="pull")
    return caught.value.message


def test_a_mode_that_needs_peers_memory_says_what_to_set(start: Starter) -> None:
    """Asked for without provider pcie, in a call or as a setting: one sentence, on every rank."""
    sentence = "mode pull needs peers' memory: provider pcie"
    assert start(without_pcie, 2).values() == [sentence] * 2
    for error in start(without_pcie, 2, settings={"mode": "pull"}).errors():
        assert error.type == "SetupError" and sentence in error.message


def open_and_close(me: Rank) -> None:
    me.communicator().close()


def test_too_many_peers_and_ranks_of_several_hosts_are_refused(start: Starter) -> None:
    """A GPU maps 8 peers; the ninth would fail on some ranks only, with the driver's number for it."""
    for error in start(open_and_close, 10, settings=PCIE).errors():
        assert "provider pcie reaches at most 8 peers, this world of 10 has 9: set ROCE_RING_PROVIDER" in error.message
    assert problem(["a"] * 9) is None
    assert (said := problem(["a", "b", "a"])) and "for ranks of one host, these run on a, b" in said
