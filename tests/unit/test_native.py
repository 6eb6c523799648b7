"""Python's view of the C structs is checked against the header's own table, field by field."""

from __future__ import annotations

import ctypes as ct

import pytest

from roce_ring.native import VIEWS, Config, layout_problems, native


def table() -> str:
    return str((native().proxy.rr_layout_table() + native().kernels.rr_op_table()).decode())


def test_views_match() -> None:
    """A wheel whose Python and C parts differ must refuse to load, so equal ones must load."""
    assert layout_problems(table(), VIEWS) == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("rr_op count 16 8", "rr_op count 24 8", "rr_op.count is at 24 with 8 bytes in C, 16 with 8 bytes in Python"),
        ("rr_config cpu ", "rr_config core ", "rr_config.core is at"),
        ("rr_event - 0 ", "rr_event - 0 1", "rr_event has 1"),
        ("rr_stats polls ", "rr_stats_polls polls ", "rr_stats.polls is not in the library's table"),
    ],
)
def test_a_moved_renamed_or_missing_field_is_named(old: str, new: str, sentence: str) -> None:
    """The check itself must be able to fail."""
    assert old in table()
    assert any(problem.startswith(sentence) for problem in layout_problems(table().replace(old, new, 1), VIEWS))


def test_an_old_binding_is_refused_in_one_sentence() -> None:
    """struct_bytes is the first field so that a library can tell a shorter struct from its own."""
    why = ct.create_string_buffer(1024)
    config = Config(struct_bytes=8, world=2, provider=1)
    assert native().proxy.rr_proxy_create(ct.byref(config), why, len(why)) is None
    assert b"binding and library differ in version" in why.value


def test_layout_hash_tells_worlds_and_capacities_apart() -> None:
    """Ranks of another world or slot size must not pass for ours."""
    lib = native()
    hashes = {
        int(lib.proxy.rr_layout_hash(world, lib.layout(world, size).slot_bytes))
        for world in (2, 3, 4)
        for size in (4096, 8192)
    }
    assert len(hashes) == 6
