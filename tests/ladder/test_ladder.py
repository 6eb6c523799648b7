"""Ladders: what a file may say, what it decides, and what a person is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roce_ring.direct import LOADS
from roce_ring.errors import ConfigError
from roce_ring.ladder.choose import choose, fabric_of
from roce_ring.ladder.classes import CLASSES
from roce_ring.ladder.explain import differences, explain
from roce_ring.ladder.loading import load, parse, shipped
from roce_ring.ladder.model import Key, Ladder
from roce_ring.modes import modes

KIB, MIB = 1024, 1024 * 1024
HERE = Key(world=4, device="cpu")


def tree(*buckets: tuple[int, str], **fields: Any) -> dict[str, Any]:
    """A right file of fabric shm, but for what `fields` changes."""
    return {
        "schema": "roce-ring/ladder/v1",
        "fabric": "shm",
        "provenance": {"kind": "measured", "source": "this test"},
        "buckets": [{"upto": upto, "profiles": [{"mode": mode}]} for upto, mode in buckets],
    } | fields


def ladder(*buckets: tuple[int, str], **fields: Any) -> Ladder:
    return parse(json.dumps(tree(*buckets, **fields)).encode(), "a.json")


def named(name: str) -> Ladder:
    return next(one for one in shipped() if one.name == f"shipped {name}")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": "roce-ring/ladder/v9"}, "says schema 'roce-ring/ladder/v9', expected 'roce-ring/ladder/v1'"),
        ({"fabric": "pcie-swich"}, "fabric 'pcie-swich' is unknown: did you mean 'pcie-switch'?"),
        ({"also_for": ["shn"]}, "fabric 'shn' is unknown: did you mean 'shm'?"),
        ({"also_for": ["shm"]}, "also_for names shm beside fabric shm: one of them twice"),
        ({"key": {"world": 17}}, "key.world is 17, expected 2 to 16"),
        ({"key": {"device": "tpu"}}, "key.device is 'tpu', expected cpu or cuda"),
        ({"key": {"word": 4}}, "field 'word' is unknown"),
        ({"provenance": {"kind": "guessed", "source": "me"}}, "provenance needs a kind of measured"),
        ({"buckets": []}, "it has no buckets, so it covers nothing"),
        ({"buckets": 3}, "holds the number 3, expected a list"),
        ({"buckets": [{"upto": 24, "profiles": [{"mode": "full"}]}]}, "upto is 24, expected a positive multiple of 16"),
        ({"buckets": [{"upto": 16, "profiles": []}]}, "has 0 profiles, expected one"),
        ({"buckets": [{"upto": 16, "profiles": [{"mode": "ful"}]}]}, "mode 'ful' is unknown: did you mean 'full'?"),
        ({"buckets": [{"upto": 16, "profiles": [{"mode": "full", "fp32_partials": True}]}]}, "full does not"),
        ({"buckets": [{"upto": 16, "profiles": [{"mode": "pull"}]}]}, "mode pull needs peers' memory"),
        ({"key": {"world": 6}, "buckets": [{"upto": 16, "profiles": [{"mode": "halving"}]}]}, "power of two"),
    ],
)  # fmt: skip
def test_a_wrong_file_gets_a_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ladder((64, "full"), **fields)
    assert said in str(refused.value)


def test_all_mistakes_are_told_at_once() -> None:
    """A person who mends one line after the other starts the ranks as many times."""
    with pytest.raises(ConfigError) as refused:
        ladder((64, "full"), (64, "full"), (32, "ring"), (100, "nope"))
    told = str(refused.value)
    assert "buckets[1]: upto 64 is that of the bucket before: the two overlap" in told
    assert "buckets[2]: upto 32 comes after 64: buckets are sorted by size" in told
    assert "buckets[3]: upto is 100" in told
    assert "mode 'nope'" in told


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'"text"'])
def test_what_is_no_ladder_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigError, match=r"ladder a\.json"):
        parse(raw, "a.json")


def test_a_file_that_cannot_be_read_or_is_far_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        load(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)
    long = tmp_path / "long.json"
    long.write_bytes(b" " * (MIB + 1))
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        load(long)


def test_every_size_finds_its_bucket() -> None:
    one = ladder((16, "full"), (64, "ring"), (4096, "payload_rsag"))
    chosen = [one.profile(size).mode for size in range(1, 4097)]
    assert chosen == ["full"] * 16 + ["ring"] * 48 + ["payload_rsag"] * 4032
    assert (one.capacity, list(one.bands())) == (
        4096, [(1, 16, "full"), (17, 64, "ring"), (65, 4096, "payload_rsag")],
    )  # fmt: skip
    with pytest.raises(IndexError):
        one.profile(4097)


def test_a_digest_is_of_what_decides() -> None:
    """Two ranks may have a file under two names, with two notes; but not with two choices."""
    one = ladder((64, "full"))
    assert one.digest == ladder((64, "full"), provenance={"kind": "modelled", "source": "elsewhere"}).digest
    others = [ladder((80, "full")), ladder((64, "ring")), ladder((64, "full"), fabric="roce-switch")]
    assert len({one.digest, *(other.digest for other in others)}) == 4


def test_there_is_a_shipped_ladder_for_every_class() -> None:
    for fabric in CLASSES:
        for device in ("cpu", "cuda"):
            found = choose("", fabric, Key(world=3, device=device), 1024 * MIB)
            assert (found.ladder.file.fabric, found.warning) == (fabric, "")


def test_across_quadrants_the_published_bands_hold_and_nothing_reads() -> None:
    """The forced ladder that brought host-bridge GPUs to the level of a switch. Its bands leave gaps (110 to 115 KiB,
    1.6 to 1.7 MiB), in which either neighbour is right."""
    one = named("pcie-hostbridge")
    published = [
        (1, 12 * KIB, ("full", "payload_rsag")),
        (12 * KIB + 1, 110 * KIB, ("full_phased",)),
        (115 * KIB, int(1.6 * MIB) // 16 * 16, ("payload_rsag_phased",)),
        (int(1.7 * MIB), 8 * MIB, ("bulk_push_phased",)),
    ]
    for low, high, expected in published:
        for size in (low, (low + high) // 2, high):
            assert one.profile(size).mode in expected, size
    reads = [name for _, _, name in one.bands() if modes()[name].access == LOADS]
    assert reads == []


def test_below_one_switch_nothing_is_phased() -> None:
    assert not [name for _, _, name in named("pcie-switch").bands() if name.endswith("_phased")]
    with pytest.raises(ConfigError, match="full_phased costs 4 to 6 % here for nothing"):
        ladder((64, "full_phased"), fabric="pcie-switch")


def test_reads_are_refused_across_quadrants() -> None:
    with pytest.raises(ConfigError, match=r"pull reads peers' memory, and reads across quadrants stall"):
        ladder((64, "pull"), fabric="pcie-hostbridge")


def test_the_class_follows_from_the_paths() -> None:
    assert fabric_of("verbs", complete=True, forwards=True) == "roce-ring-mesh"
    assert fabric_of("verbs", complete=True, forwards=False) == "roce-switch"
    assert fabric_of("verbs", complete=False, forwards=False) == "roce-ring-neighbour"
    assert fabric_of("shm", complete=True, forwards=False) == "shm"
    assert fabric_of("pcie", complete=True, forwards=False) == "pcie-hostbridge"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"fabric": "roce-switch"}, "it is for fabric roce-switch, this session's is shm"),
        ({"key": {"world": 8}}, "world is 4 here, the ladder is for 8"),
        ({"key": {"device": "cuda"}}, "device is cpu here, the ladder is for cuda"),
        ({"key": {"gpu": "NVIDIA H200"}}, "gpu is not known here, the ladder is for NVIDIA H200"),
        ({"key": {"acs_redirects": False}}, "acs_redirects is not known here, the ladder is for False"),
        ({"key": {"hairpin_packets": 8192}}, "hairpin_packets is not known here, the ladder is for 8192"),
    ],
)
def test_a_ladder_for_something_else_covers_nothing_and_says_so(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(tree((MIB, "ring"), **fields)))
    found = choose(str(file), "shm", HERE, MIB)
    assert found.ladder.name == "shipped shm-cpu"
    assert f"covers nothing here: {said}" in found.warning


def test_a_ladder_that_ends_too_early_or_needs_another_world_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(tree((4096, "halving"))))
    with pytest.raises(ConfigError) as refused:
        choose(str(file), "shm", Key(world=3, device="cpu"), MIB)
    assert "it ends at 4096 bytes and max_bytes is 1048576: a gap" in str(refused.value)
    assert "halving needs a world that is a power of two; this one is 3" in str(refused.value)


def test_explain_says_why_and_what_else_there_was() -> None:
    bounds, considered = explain(named("pcie-hostbridge"), 81920, 4)
    assert bounds == (12289, 112640)
    assert [one.mode for one in considered if one.chosen] == ["full_phased"]
    assert {one.mode for one in considered} == set(modes())
    pull = next(one for one in considered if one.mode == "pull")
    assert pull.median_us == 11.5  # the lowest median of all: what a race would have taken
    assert "stall" in pull.why


def test_a_file_for_several_fabrics_holds_on_the_strictest() -> None:
    """One file for the ring and for the box: what one of them forbids it may not say."""
    both = {"fabric": "roce-switch", "also_for": ["pcie-switch"]}
    with pytest.raises(ConfigError, match=r"full_phased costs 4 to 6 % here for nothing.*\(fabric pcie-switch\)"):
        ladder((64, "full_phased"), **both)
    one = ladder((MIB, "ring"), **both)
    assert one.digest != ladder((MIB, "ring"), fabric="roce-switch").digest
    _, considered = explain(one, 64, 4)
    assert "needs peers' memory" in next(seen.why for seen in considered if seen.mode == "pull")
    assert "costs 4 to 6 %" in next(seen.why for seen in considered if seen.mode == "full_phased")


def test_differences_are_ranges() -> None:
    a, b = ladder((64, "full"), (4096, "ring")), ladder((32, "full"), (1024, "ring"), (8192, "payload_rsag"))
    assert list(differences(a, b)) == [(33, 64, "full", "ring"), (1025, 4096, "ring", "payload_rsag")]
    assert list(differences(a, a)) == []
