"""The doctor as people run it: exit status, streams, files, and sentences for what is wrong with the input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mesh import ssh
from mesh.doctor import doctor
from mesh.doctor.doctor import main
from tests.mesh.doctor.healthy import PLAN, healthy

ROOT = Path(__file__).parents[3]


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(PLAN))
    return str(path)


def written(path: Path, *nodes: object) -> str:
    path.write_text(json.dumps(nodes))
    return str(path)


def test_a_healthy_ring_ends_with_fine_and_0(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = written(tmp_path / "seen.json", *map(healthy, range(4)))
    assert main(["--from", seen, "--plan", plan]) == 0
    assert capsys.readouterr().out == "s1: fine\ns2: fine\ns3: fine\ns4: fine\n4 node(s): fine\n"


def test_findings_are_listed_by_node_with_their_fix_and_end_with_1(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = list(map(healthy, range(4)))
    for function in nodes[1]["functions"]:
        function["mtu"] = 1500
    nodes[2]["functions"][0]["aer"]["fatal"] = 2
    assert main(["--from", written(tmp_path / "seen.json", *nodes), "--plan", plan]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["s1: fine", "s2: 4 error(s)"]
    assert shown[2].startswith("  error   mtu-small: enp1s0f0np0 (plane 0, port 0), enp1s0f1np1")  # four in one
    assert shown[3].startswith("          fix: 'ip link set dev enp1s0f0np0 mtu 9000'")
    assert "  runs    sglang (pid 4711): see that a fix does not interrupt them" in shown
    assert "s3: 1 warning(s)" in shown
    assert shown[-1] == "4 node(s): 4 error(s), 1 warning(s); docs/troubleshooting.md explains each code"


def test_notes_do_not_fail_a_script_and_the_unknown_does(
    plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted, unknown = list(map(healthy, range(4))), list(map(healthy, range(4)))
    noted[0]["memlock"]["docker"] = 0
    unknown[0]["unknown"] = {"counters": "'rdma' is not installed"}
    assert main(["--from", written(tmp_path / "a.json", *noted), "--plan", plan]) == 0
    assert main(["--from", written(tmp_path / "b.json", *unknown), "--plan", plan]) == 2
    assert "  unknown rdma-errors: 'rdma' is not installed\n" in capsys.readouterr().out


def test_json_is_one_document(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = (healthy(0), healthy(1))
    assert main(["--from", written(tmp_path / "seen.json", *nodes), "--plan", plan, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "roce-ring/doctor/v1"
    assert document["ring"][0]["code"] == "node-not-asked"
    assert set(document["ring"][0]) == {"code", "severity", "where", "seen", "expected", "fix"}


def test_what_was_seen_here_can_be_judged_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This machine, whatever it is: written, read back, and judged the same."""
    kept = tmp_path / "seen.json"
    status = main(["--interval", "0", "--host", "here", "--evidence-out", str(kept)])
    shown = capsys.readouterr().out
    assert main(["--from", str(kept)]) == status
    assert capsys.readouterr().out == shown


def test_a_node_is_judged_by_the_plan_its_agent_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node nobody should have to look for the plan's file."""
    state = tmp_path / "agent.json"
    state.write_text(json.dumps({"plan": msgspec.json.encode(PLAN).decode()}))
    monkeypatch.setattr(doctor, "AGENT_STATE", state)
    assert main(["--interval", "0", "--host", "other"]) == 1
    assert "host-not-planned: other: the plan has s1, s2, s3, s4" in capsys.readouterr().out


def test_hosts_that_do_not_answer_are_named_and_the_others_judged(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = tuple(healthy(rank) for rank in range(3))
    monkeypatch.setattr(ssh, "ask_all", lambda *_: (*answers, "s4: no answer within 60 s"))
    assert main(["--ssh", "s1", "s2", "s3", "s4", "--plan", plan]) == 2
    shown = capsys.readouterr().out.splitlines()
    assert "s1: fine" in shown
    assert shown[-2:] == [
        "  s4: no answer within 60 s",
        "3 node(s): 1 note(s), 1 host(s) could not be asked" + EXPLAINED,
    ]


EXPLAINED = "; docs/troubleshooting.md explains each code"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "file-empty"),
        ("{}", "a list with the evidence of each node"),
        ("[]", "an empty list"),
        ("[{}]", "holds a mapping without 'schema'; expected the evidence of a node"),
        ('[{"schema": "roce-ring/evidence/v1", "hots": 1}]', "did you mean 'host'?"),
    ],
)
def test_a_file_that_holds_no_evidence(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    assert main(["--from", str(bad)]) == 2
    shown = capsys.readouterr()
    assert (shown.out, said in shown.err) == ("", True), shown.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "x", "--ssh", "a"],
        ["--interval", "-1"],
        ["--ssh-timeout", "nan", "--ssh", "a"],
        ["--ssh-timeout", "5"],
        ["--ssh", "a", "--host", "b"],
        ["--from", "x", "--interval", "2"],
        ["--host", ""],
        ["--host", "a b"],
        ["--from", "/no/such"],
    ],
)
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(arguments)
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    assert status == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_full_disk_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--interval", "0", "--evidence-out", str(tmp_path / "no" / "where.json")]) == 2
    assert "where.json cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_file_that_takes_no_evidence_is_named_before_the_looking(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_look", lambda _: pytest.fail("looked"))
    assert main(["--interval", "5", "--evidence-out", "/no/such/x"]) == 2
    assert "/no/such/x cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_full_disk_under_the_evidence_is_not_called_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_look", lambda _: ((), ()))
    assert main(["--evidence-out", "/dev/full"]) == 2
    assert (
        capsys.readouterr().err == "error: /dev/full cannot be written (No space left on device); name another file\n"
    )


@pytest.mark.parametrize(
    ("option", "content", "said"),
    [
        ("--from", "", "expected a list with the evidence of each node; fix: name a file that 'roce-ring doctor --ev"),
        ("--plan", "", "expected a plan; fix: name the plan.json that 'roce-ring plan --out' wrote"),
        ("--from", '{"schema": "roce-ring/mesh-plan/v1"}', "holds a plan; expected a list with the evidence"),
        ("--from", '{"schema": "roce-ring/doctor/v1"}', "holds what 'roce-ring doctor --json' printed"),
        ("--plan", "nodes: []", "holds facts; expected a plan"),
        ("--plan", "[" * 500 + "]" * 500, "fix: name the plan.json"),
    ],
)
def test_the_fix_is_for_the_file_that_was_named(
    option: str, content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(content)
    assert main([option, str(tmp_path / "x.json"), "--json"]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert json.loads(shown.out)["schema"] == "roce-ring/error/v1"


def test_the_script_runs_from_a_clone(tmp_path: Path) -> None:
    """Nothing of roce_ring is imported: a node needs PyYAML and msgspec only."""
    seen = written(tmp_path / "seen.json", healthy())
    command = [sys.executable, "-X", "importtime", str(ROOT / "mesh/doctor/doctor.py"), "--from", seen]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", env={"PATH": os.environ["PATH"]}, check=False
    )
    assert done.returncode == 2, done.stderr  # one node without a plan: not everything can be known
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not {name for name in imported if name.split(".")[0] in ("roce_ring", "numpy", "grpc", "typer")}
