"""Ranks that leave on their own feet: the others, if they still need them, hear "closed" and by whom."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from roce_ring.errors import PeerClosed
from tests.local.ranks import Rank, Starter

LEAVER = 1
CLOSED = (r"a peer closed its session while this rank still needed it",)


class UsersMistakeError(Exception):
    pass


def leave(me: Rank, how: str, mode: str) -> float:
    """Rank LEAVER leaves after ten operations, the others go on. Returns how long they took to hear."""
    ar = me.communicator()
    x = np.ones(3000, np.float32)
    for _ in range(10):
        assert (ar.all_reduce(x, mode=mode) == me.world).all()
    if me.rank == LEAVER:
        if how == "close":
            ar.close()
        elif how == "raise":
            with ar:
                raise UsersMistakeError
        return 0.0
    began = time.monotonic()
    with pytest.raises(PeerClosed) as caught:  # noqa: PT012  # one of many, which one is not known
        while True:
            ar.all_reduce(x, mode=mode)
    took = time.monotonic() - began
    assert caught.value.culprit == LEAVER, caught.value
    assert f"rank {LEAVER}" in caught.value.message
    assert "same number of collectives" in caught.value.hint
    ar.close()
    return took


@pytest.mark.parametrize(
    ("how", "mode"), [("close", "full"), ("close", "ring"), ("raise", "full"), ("exit without close", "full")]
)
def test_a_rank_that_leaves_while_others_go_on(start: Starter, how: str, mode: str) -> None:
    """One rank's loop is shorter, or its user's code raised: the others' error says "closed", names it, and does not
    send them looking for a crash. A process of multiprocessing never runs atexit; it says good-bye all the same."""
    for one in start(leave, 3, how=how, mode=mode).finish(allow=CLOSED):
        if one.rank == LEAVER and how == "raise":
            assert one.error and one.error.type == "UsersMistakeError"
        else:
            assert one.error is None, one.error.traceback
            assert one.value < 5


def finish_at_different_times(me: Rank) -> None:
    with me.communicator() as ar:
        for _ in range(200):
            ar.all_reduce(np.ones(100, np.float32))
        time.sleep(me.rank * 0.3)


def test_closing_after_the_last_operation_is_no_fault(start: Starter) -> None:
    """Ranks never close at the same instant. Whoever closes first has sent all that the others wait for."""
    for one in start(finish_at_different_times, 3).finish():
        assert one.error is None, one.error.traceback


SCRIPT = """
    import sys
    import numpy as np
    from roce_ring import AllReduce
    from roce_ring.errors import PeerClosed
    rank = int(sys.argv[1])
    ar = AllReduce.from_rendezvous("unix:{where}/meet.sock", rank, 2)
    for _ in range(5):
        ar.all_reduce(np.ones(10, np.float32))
    if rank == 1:
        {end}
    try:
        while True:
            ar.all_reduce(np.ones(10, np.float32))
    except PeerClosed as error:
        print("culprit", error.culprit)
"""


@pytest.mark.parametrize(("end", "status"), [("sys.exit(3)", 3), ("raise ValueError('mistake')", 1)])
def test_a_script_that_ends_without_close(start: Starter, end: str, status: int) -> None:
    """The shortest script has no close(): it ends by itself, keeps its exit status, and its peers hear "closed"."""
    script = textwrap.dedent(SCRIPT.format(where=start.where, end=end))
    environment = {"ROCE_RING_RUN_DIR": str(start.where)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], env=environment, stdout=-1, stderr=-1, text=True)
        for rank in (0, 1)
    ]
    (out, errors), (_, mistake) = (one.communicate(timeout=30) for one in ranks)
    assert [one.returncode for one in ranks] == [0, status], errors + mistake
    assert out == "culprit 1\n"
    assert ("ValueError: mistake" in mistake) == ("raise" in end)
    assert not list(start.where.iterdir()), "sockets are left"
