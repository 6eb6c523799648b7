"""What a communicator does not take: one sentence, before a byte has moved, on all ranks alike; then it works on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from roce_ring.errors import RoceRingError
from tests.local.ranks import Rank, Starter

Wrong = tuple[str, Callable[[Any], Any], str]

MAX_BYTES = 4096


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def read_only() -> np.ndarray:
    out = f32(8)
    out.flags.writeable = False
    return out


# What the user does, and what the sentence has to say.
MISTAKES: list[Wrong] = [
    ("float64", lambda ar: ar.all_reduce(np.ones(4)), "dtype float64 is not one of float32, float16, bfloat16"),
    ("int32", lambda ar: ar.all_reduce(np.ones(4, np.int32)), "dtype int32"),
    ("other byte order", lambda ar: ar.all_reduce(np.ones(4, ">f4")), "dtype >f4"),
    ("a column", lambda ar: ar.all_reduce(f32(4, 4)[:, 1]), "not contiguous"),
    ("Fortran order", lambda ar: ar.all_reduce(np.asfortranarray(f32(4, 3))), "not contiguous"),
    ("too large", lambda ar: ar.all_reduce(f32(1025)), "has 4100 bytes, at most 4096 are taken"),
    ("empty", lambda ar: ar.all_reduce(f32(0)), "all_reduce: the tensor is empty"),
    ("masked", lambda ar: ar.all_reduce(np.ma.masked_less(f32(4), 2)), "got a masked array, whose mask would be lost"),
    ("a list", lambda ar: ar.all_reduce([1.0, 2.0]), "got a list, expected a numpy or CuPy array or a torch tensor"),
    ("None", lambda ar: ar.all_reduce(None), "got a NoneType"),
    ("out of another shape", lambda ar: ar.all_reduce(f32(8), f32(2, 4)), "out is a float32[2, 4]"),
    ("out of another dtype", lambda ar: ar.all_reduce(f32(8), np.ones(8, np.float16)), "out is a float16[8]"),
    ("a list as out", lambda ar: ar.all_reduce(f32(8), [0.0] * 8), "got a list"),
    ("out that may not be written", lambda ar: ar.all_reduce(f32(8), read_only()), "out is a read-only float32[8]"),
    (
        "out that is not contiguous",
        lambda ar: ar.all_reduce(f32(4), f32(4, 4)[:, 0]),
        "out is a non-contiguous float32[4]",
    ),
    ("out that overlaps x", lambda ar: ar.all_reduce((x := f32(9))[:8], x[1:]), "out overlaps x without being x"),
    ("a mode that does not exist", lambda ar: ar.all_reduce(f32(8), mode="rign"), "unknown mode 'rign'"),
    ("halving with 3 ranks", lambda ar: ar.all_reduce(f32(8), mode="halving"), "needs a world that is a power of two"),
    ("rows that do not divide", lambda ar: ar.reduce_scatter(f32(4, 2)), "multiple of the world of 3"),
    ("reduce_scatter of a number", lambda ar: ar.reduce_scatter(np.array(1, np.float32)), "multiple of the world of 3"),
    ("gather along the middle", lambda ar: ar.all_gather(f32(2, 2, 2), dim=1), "dim is 1 of shape [2, 2, 2]"),
    ("gather of a number", lambda ar: ar.all_gather(np.array(1, np.float32)), "dim is 0 of shape []"),
    ("too few sizes", lambda ar: ar.all_gather(f32(2), sizes=[2, 2]), "expected 3 sizes"),
    ("sizes that are no numbers", lambda ar: ar.all_gather(f32(2), sizes=["2", 2.0, None]), "do not fit"),
    ("sizes that are not mine", lambda ar: ar.all_gather(f32(2), sizes=[3, 3, 3]), "sizes [3, 3, 3] do not fit"),
    ("a shard that is too large", lambda ar: ar.all_gather(f32(2000)), "8000 bytes, expected 1 to 4096"),
    ("nobody has anything", lambda ar: ar.all_gather(f32(0)), "0 bytes, expected 1 to 4096"),
    ("gather of a column", lambda ar: ar.all_gather(f32(4, 4)[:, 1]), "not contiguous"),
    ("gather of objects", lambda ar: ar.all_gather(np.array([object()])), "Python objects"),
    (
        "gather into another shape",
        lambda ar: ar.all_gather(f32(2), out=f32(2)),
        "expected a contiguous writable float32[6]",
    ),
]


def make_every_mistake(me: Rank) -> list[tuple[str, str, str, str]]:
    seen = []
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        for name, mistake, _ in MISTAKES:
            before = ar.session.device_state.commands
            try:
                mistake(ar)
            except RoceRingError as error:
                seen.append((name, type(error).__name__, error.message, error.hint))
            else:
                seen.append((name, "nothing", "", ""))
            assert ar.session.device_state.commands == before, f"{name}: bytes moved"
            x = f32(5)
            assert (ar.all_reduce(x) == me.world).all(), f"{name}: broken afterwards"
        assert ar.session.control.state().state == "RUNNING"
    return seen


def test_every_unsupported_input_has_its_sentence(start: Starter) -> None:
    """Integration code asks for what is not there; it must learn so at the call, not from a hang or from wrong sums."""
    everybody = start(make_every_mistake, 3).values()
    everybody = [  # which of the sizes is wrong is all that may differ
        [(name, kind, re.sub(r"number \d", "number r", message), hint) for name, kind, message, hint in one]
        for one in everybody
    ]
    assert everybody[1:] == everybody[:-1], "ranks refuse differently"
    for (name, kind, message, hint), (_, _, expected) in zip(everybody[0], MISTAKES, strict=True):
        assert kind == "UnsupportedError", f"{name}: {kind}: {message}"
        assert expected in message, f"{name}: {message}"
        assert "\n" not in message and message[0].islower() and not message.endswith("."), f"{name}: {message}"
        assert len(message) < 200 and "\n" not in hint


def should_all_reduce(me: Rank) -> list[bool]:
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        inputs = [f32(8), f32(1024), f32(1025), f32(0), np.ones(4), [1.0], None, f32(4, 4)[:, 1], np.ones(4, ">f4")]
        return [ar.should_all_reduce(x) for x in inputs]


def test_should_all_reduce_says_what_all_reduce_will_do(start: Starter) -> None:
    """An engine asks first, for every tensor, and falls back to its own all-reduce: it must never raise."""
    assert start(should_all_reduce, 2).values() == [[True, True] + [False] * 7] * 2


def misuse(me: Rank) -> dict[str, tuple[str, str]]:
    said = {}

    def refused(name: str, call: Callable[[], Any]) -> None:
        with pytest.raises(RoceRingError) as caught:
            call()
        said[name] = (caught.value.code, str(caught.value))

    ar = me.communicator()
    with ar.capture():
        assert (ar.all_reduce(f32(3)) == me.world).all()
        with_capture = ar.capture()
        refused("capture in capture", with_capture.__enter__)
    with ar.capture():
        pass

    child = os.fork()
    if child == 0:  # no pytest here: whatever happens, this process ends in this block
        status = 9
        try:
            for call in (lambda: ar.all_reduce(f32(3)), lambda: ar.all_gather(f32(3)), ar.reset):
                try:
                    call()
                except RoceRingError as error:
                    status = 0 if error.code == "forked" and "make one after the fork" in str(error) else 8
                else:
                    status = 7
                if status:
                    break
            ar.close()  # must neither hang nor take anything away from the parent
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (ar.all_reduce(f32(3)) == me.world).all()
    assert ar.session.control.state().state == "RUNNING"

    ar.close()
    ar.close()
    refused("all_reduce after close", lambda: ar.all_reduce(f32(3)))
    refused("all_gather after close", lambda: ar.all_gather(f32(3)))
    refused("check after close", ar.check)
    refused("reset after close", ar.reset)
    return said


def test_misuse_of_a_communicator(start: Starter) -> None:
    """Captures that nest, a forked child, a closed communicator: an answer at once, never a hang or a crash."""
    for said in start(misuse, 2).values():
        assert said["capture in capture"][0] == "capture"
        for name in ("all_reduce after close", "all_gather after close", "check after close", "reset after close"):
            code, text = said[name]
            assert code in ("closed", "exchange") and "closed" in text, f"{name}: {text}"


def torch_mistakes(me: Rank) -> list[str]:
    import torch

    out = []
    with me.communicator(max_bytes=MAX_BYTES) as ar:
        for x in (
            torch.ones(4, 4).t()[:2],
            torch.ones(4, dtype=torch.float64),
            torch.ones(4, device="meta"),
            torch.ones(4, 4).to_sparse(),
            torch.ones(1025),
        ):
            assert not ar.should_all_reduce(x)
            with pytest.raises(RoceRingError) as caught:
                ar.all_reduce(x)
            out.append(caught.value.message)
        assert (ar.all_reduce(torch.ones(4)) == me.world).all()
    return out


def test_torch_tensors_that_are_not_taken(start: Starter) -> None:
    """The same for torch, whose tensors can be strided, sparse or nowhere."""
    pytest.importorskip("torch", reason="torch is not installed; CI installs its CPU build")
    everybody = start(torch_mistakes, 2).values()
    assert everybody[0] == everybody[1]
    strided, dtype, nowhere, sparse, large = everybody[0]
    assert "not contiguous" in strided
    assert "float64" in dtype
    assert "on meta, expected cpu" in nowhere
    assert "sparse" in sparse
    assert "4100 bytes" in large
