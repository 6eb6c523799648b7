"""Fact files with mistakes in them: every mistake is found, at its place, with a suggestion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.finding import Finding, Refused
from mesh.loading import load_facts
from mesh.planner import make_plan
from tests.mesh.rings import SAMPLE, document, ring_cables


def refusal(path: Path, order: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    with pytest.raises(Refused) as refused:
        load_facts(path, order)
    return refused.value.findings


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = SAMPLE.read_text()
    assert old in text
    path = tmp_path / "facts.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("mtu: 9000", "mut: 9000", "unknown-field", ["field 'mut'", "did you mean 'mtu'?"]),
        ("  - host: s2", "  - hots: s2", "unknown-field", ["nodes[1]", "did you mean 'host'?"]),
        ("  - host: s2", "  - hots: s2", "missing-field", ["nodes[1]", "'host' is absent"]),
        ("mtu: 9000", "mtu: nine thousand", "wrong-type", ["common.mtu", "'nine thousand'", "a whole number"]),
        ("mtu: 9000", "mtu: true", "wrong-type", ["common.mtu", "a whole number"]),
        ("hw_tc_offload: true", "hw_tc_offload: 1", "wrong-type", ["common.hw_tc_offload", "true or false"]),
        ('pci: "0000:01:00.0"', "pci: 0000:01:00.0", "wrong-type", ["common.ports[0] (enp1s0f0np0).pci", "in quotes"]),
        ('"02:00:00:01:00:00"', "12:34:56:01:02:03", "wrong-type", ["nodes[0] (s1).mac", "in quotes"]),
        ("plane: 0, port: 0}", "port: 0}", "missing-field", ["common.ports[0]", "'plane'"]),
        ("nodes:", "nodez:", "unknown-field", ["did you mean 'nodes'?"]),
        ("{enp1s0f0np0: 10.10.3.11", "{enp1s0f0np9: 10.10.3.11", "unknown-field", ["did you mean 'enp1s0f0np0'?"]),
        ("mtu: 9000", "mtu: 9000\n  mtu: 1500", "file-not-yaml", ["line 6", "'mtu' is written twice", "line 5"]),
        ("nodes:", "nodes: [", "file-not-yaml", ["line"]),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_placed_and_explained(
    tmp_path: Path, old: str, new: str, code: str, words: list[str]
) -> None:
    """Where it is, what was written, what belongs there: enough to fix it without the manual."""
    found = refusal(edited(tmp_path, old, new))
    text = "\n".join(str(item) for item in found if item.code == code)
    assert all(word in text for word in words), "\n".join(map(str, found))
    assert "Traceback" not in text
    assert "msgspec" not in text


def test_every_mistake_of_a_file_is_found_at_once(tmp_path: Path) -> None:
    """Not one per run."""
    path = edited(tmp_path, "mtu: 9000", "mut: 9000")
    path.write_text(path.read_text().replace("gid_index: 3", "gid_index: three").replace("host: s3", "hots: s3"))
    assert [item.code for item in refusal(path)] == ["unknown-field", "wrong-type", "unknown-field", "missing-field"]


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n"])
def test_an_empty_file_is_called_empty(tmp_path: Path, text: str) -> None:
    """A redirect that failed leaves an empty file."""
    path = tmp_path / "facts.yaml"
    path.write_text(text)
    assert [item.code for item in refusal(path)] == ["file-empty"]


@pytest.mark.parametrize("text", ["just words", "[1, 2]", "5"])
def test_a_document_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    """Any YAML is text; only a mapping with nodes is facts."""
    path = tmp_path / "facts.yaml"
    path.write_text(text)
    assert [item.code for item in refusal(path)] == ["wrong-type"]


def test_binary_and_missing_files(tmp_path: Path) -> None:
    """Neither ends in a traceback; a near name is suggested."""
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    assert refusal(tmp_path / "x.yaml")[0].code == "file-not-yaml"
    (missing,) = refusal(tmp_path / "y.yaml")
    assert missing.code == "file-missing"
    assert "did you mean 'x.yaml'?" in missing.fix


def split(tmp_path: Path, raw: dict[str, Any], names: list[str]) -> Path:
    """Write each node of a document as an inventory file of its own."""
    for name, node in zip(names, raw["nodes"], strict=True):
        ports = [
            dict(port, **{k: v for k, v in raw["common"].items() if k != "ports"}) for port in raw["common"]["ports"]
        ]
        (tmp_path / name).write_text(json.dumps({**node, "ports": ports}))
    return tmp_path


def test_a_directory_of_node_files_gives_the_same_plan(tmp_path: Path) -> None:
    """Inventories collected one by one are as good as one file; s10 comes after s2."""
    raw = document(4, ring_cables(4))
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(raw))
    folder = tmp_path / "nodes"
    folder.mkdir()
    split(folder, raw, ["s1.json", "s2.json", "s9.json", "s10.json"])
    assert make_plan(load_facts(folder))[0].hash == make_plan(load_facts(whole))[0].hash


def test_a_directory_reports_the_mistakes_of_every_file(tmp_path: Path) -> None:
    """Two bad files, two findings."""
    split(tmp_path, document(4, ring_cables(4)), ["a.json", "b.json", "c.json", "d.json"])
    (tmp_path / "a.json").write_text("")
    (tmp_path / "c.json").write_text('{"host": "n2", "prots": []}')
    assert [item.code for item in refusal(tmp_path)] == ["file-empty", "unknown-field"]


def test_an_empty_directory_says_how_to_fill_it(tmp_path: Path) -> None:
    """The next command is in the message."""
    (found,) = refusal(tmp_path)
    assert "roce-ring inventory" in found.fix


def test_one_inventory_alone_is_not_a_ring(tmp_path: Path) -> None:
    """A single node's file given as FACTS is a likely slip."""
    split(tmp_path, document(2, ring_cables(2)), ["a.json", "b.json"])
    (found,) = refusal(tmp_path / "a.json")
    assert found.code == "node-count"
    assert str(tmp_path) in found.fix


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (("s1", "s2", "s3"), ["'s4' is left out"]),
        (("s1", "s2", "s3", "s4", "s4"), ["'s4' is listed 2 times"]),
        (("s1", "s2", "s3", "s5"), ["'s5' is not in the facts", "'s4' is left out"]),
    ],
)
def test_an_order_must_list_every_host_once(order: tuple[str, ...], words: list[str]) -> None:
    """A rank without a node, or two, would be found much later."""
    text = "\n".join(map(str, refusal(SAMPLE, order)))
    assert all(word in text for word in words)


def test_nearest_value_wins(tmp_path: Path) -> None:
    """Port before node before shared port before common."""
    raw = document(2, ring_cables(2), hairpin_queue_size=1024)
    raw["nodes"][0]["mtu"] = 4400
    raw["common"]["ports"][0]["mtu"] = 5000
    path = tmp_path / "facts.json"
    path.write_bytes(msgspec.json.encode(raw))
    first, second = load_facts(path)
    assert [port.mtu for port in first.ports] == [4400, 4400, 4400, 4400]
    assert [port.mtu for port in second.ports] == [5000, 9000, 9000, 9000]
