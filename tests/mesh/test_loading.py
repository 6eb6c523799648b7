"""Fact files with mistakes in them: every mistake is found, at its place, with a suggestion."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh import output
from mesh.finding import Finding, Refused
from mesh.loading import MOST_BYTES, load_facts, load_plan
from mesh.planner import make_plan
from tests.mesh.rings import SAMPLE, document, facts, ring_cables


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
        ("  mtu: 9000", "\tmtu: 9000", "file-not-yaml", ["line 5, column 1: a tab"]),
        ("mtu: 9000", "mtu: 9000\r\r\r\r\r\r\r\r\t[", "file-not-yaml", ["line"]),
        ("nodes:", "nodes:\r\t- host: s1", "file-not-yaml", ["line"]),
        ("mtu: 9000", "mtu: 0b_", "file-not-yaml", ["line 5, column 8: '0b_'"]),
        ("mtu: 9000", f"mtu: {'9' * 5000}", "file-not-yaml", ["line 5, column 8: '9999"]),
        ("mtu: 9000", "mtu: 2026-13-45", "file-not-yaml", ["line 5, column 8: '2026-13-45'"]),
        ("mtu: 9000", "mtu: !!bool perhaps", "file-not-yaml", ["line 5, column 8: 'perhaps'"]),
        ("  - host: s2", "  - <<: {mtu: 1500}\n    host: s2", "file-not-yaml", ["'<<'", "'common'"]),
        ("mtu: 9000", '"a\\nb\\e[31m": 9000', "unknown-field", ["field 'a\\nb\\x1b[31m' is unknown"]),
        ("gid_index: 3", f"gid_index: {[[1]] * 300}", "wrong-type", ["common.gid_index", "a whole number"]),
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


def test_a_large_file_is_refused_at_once(tmp_path: Path) -> None:
    """A log or a disk image named by mistake: parsing 24 MB looked like a hang."""
    path = tmp_path / "facts.yaml"
    path.write_text("nodes:\n" + " - host: s1\n" * 2_000_000)
    begin = time.process_time()
    (found,) = refusal(path)
    assert time.process_time() - begin < 0.5
    assert found.code == "file-large"
    path.write_text(SAMPLE.read_text() + "#" * (MOST_BYTES - SAMPLE.stat().st_size))
    assert len(load_facts(path)) == 4


def test_the_largest_plan_is_no_large_file(tmp_path: Path) -> None:
    """The bound on files must leave room for what the planner writes itself."""
    raw = document(16, ring_cables(16))
    plan, findings = make_plan(facts(raw))
    output.write(tmp_path / "plan", plan, facts(raw), findings)
    assert load_plan(tmp_path / "plan") == plan
    assert (tmp_path / "plan" / "plan.json").stat().st_size < MOST_BYTES / 2


@pytest.mark.parametrize("field", ["nodes", "common"])
def test_aliases_that_multiply_are_answered_at_once(tmp_path: Path, field: str) -> None:
    """Ten short lines of YAML can stand for more text than memory holds; the message must not write it out."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    path = tmp_path / "facts.yaml"
    path.write_text("\n".join([*lines, f"{field}: *a11"]))
    assert {"unknown-field", "wrong-type"} <= {item.code for item in refusal(path)}


def test_a_list_has_a_length_that_makes_sense(tmp_path: Path) -> None:
    """Hundreds of nodes are one finding, not a line with hundreds of numbers."""
    path = tmp_path / "facts.yaml"
    path.write_text("nodes:\n" + " - host: s1\n" * 300)
    (found,) = refusal(path)
    assert (found.code, found.seen) == ("bad-value", "300 items")


def test_forgotten_ports_are_named_once_per_node(tmp_path: Path) -> None:
    """Without 'ports' every address is in the wrong place; saying that 32 times hides the cause."""
    raw = document(4, ring_cables(4))
    del raw["common"]["ports"]
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(raw))
    found = refusal(path)
    assert [(item.code, item.seen) for item in found] == [("missing-field", "no 'ports' are given")] * 4


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


def test_the_hint_is_about_the_part_of_the_path_that_is_wrong(tmp_path: Path) -> None:
    """A mistyped folder gets the right one's name; names that have nothing to do with it are not listed."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "container_info.json").write_text("{}")
    assert refusal(tmp_path / "exmaples" / "ring.yaml")[0].fix == f"in {tmp_path}: did you mean 'examples'?"
    assert refusal(tmp_path / "nodes")[0].fix == f"check the path: there is no {tmp_path / 'nodes'}"
    assert refusal(tmp_path / ("x" * 300))[0].code == "file-missing"


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


def test_a_directory_of_other_files_is_refused_unread(tmp_path: Path) -> None:
    """A home directory with hundreds of JSON files is not a ring."""
    for number in range(17):
        (tmp_path / f"{number}.json").write_text("[" * 9)
    (found,) = refusal(tmp_path)
    assert (found.code, found.seen) == ("node-count", "17 files")


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


@pytest.mark.parametrize("hosts", [["n0", "n0"], []])
def test_an_order_does_not_hide_wrong_nodes(tmp_path: Path, hosts: list[str]) -> None:
    """Ordering by name must not drop the node that has another's name, nor talk about names if there are none."""
    raw = document(2, ring_cables(2))
    raw["nodes"] = [dict(raw["nodes"][0], host=host) for host in hosts]
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(Refused) as refused:
        make_plan(load_facts(path, ("n0",)))
    assert refused.value.findings[0].code == ("duplicate-host" if hosts else "node-count")


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


def test_a_mapping_of_other_things_is_one_line_and_speaks_yaml(tmp_path: Path) -> None:
    """Fields one by one are for what is misspelt; and nobody wrote Python."""
    text = "nodes: [{host: 2020-01-01}, {host: yes}]\n" + "".join(f"{name}: 1\n" for name in "abcdefghi")
    (tmp_path / "facts.yaml").write_text(text)
    unknown, date, yes = refusal(tmp_path / "facts.yaml")
    assert unknown.seen == "fields 'a', 'b', 'c' and 6 more are unknown"
    assert (date.seen, yes.seen) == ("holds the date 2020-01-01", "holds the value true")
