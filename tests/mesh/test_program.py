"""The program as people run it: what goes to which stream, which exit status, which files."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from mesh import output
from mesh.finding import Refused
from mesh.loading import load_facts, load_plan
from mesh.model import plan_hash
from mesh.plan import main
from mesh.planner import make_plan
from tests.mesh.rings import EXAMPLES, SAMPLE
from tests.mesh.test_golden import SAMPLE_LINE

ROOT = Path(__file__).parent.parent.parent


def test_the_script_runs_from_a_clone_and_ends_with_the_line() -> None:
    """`python mesh/plan.py FACTS | tail -1` is what launch scripts use; nothing of roce_ring is imported."""
    command = [sys.executable, "-X", "importtime", str(ROOT / "mesh" / "plan.py"), str(SAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True, env={})
    assert done.stdout.splitlines()[-1] == SAMPLE_LINE
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not {name for name in imported if name.split(".")[0] in ("roce_ring", "numpy", "grpc", "torch", "typer")}


@pytest.mark.parametrize("prefix", ["NCCL_", "ROCE_RING_", "VLLM_", "DSV41_"])
def test_environment_lines_are_last_and_alone(capsys: pytest.CaptureFixture[str], prefix: str) -> None:
    """One line per consumer, each usable as it is."""
    assert main([str(SAMPLE)]) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    (line,) = (line for line in lines if line.startswith(prefix))
    assert all("=" in word for word in line.split())


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))])
def test_our_own_line_is_accepted_by_our_settings(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """An unknown ROCE_RING_ name is an error at start, so none is printed; aliases must agree with ours."""
    settings = pytest.importorskip("roce_ring.settings")
    main([str(EXAMPLES / f"{name}.yaml"), "--json"])
    lines = json.loads(capsys.readouterr().out)["environment"]
    for consumer in ("sglang", "vllm"):
        words = f"{lines['roce-ring'][0]} {lines[consumer][0]}".split()
        found = settings.Settings.from_env(dict(word.split("=", 1) for word in words))
        assert f"ROCE_RING_MAX_BYTES={found.max_bytes} " in lines["roce-ring"][0]


def test_a_refusal_leaves_stdout_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A script that takes the last line must get nothing rather than something wrong."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(SAMPLE.read_text().replace("mtu: 9000", "mtu: 1500"))
    assert main([str(bad)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error mtu-small" in shown.err
    assert "docs/troubleshooting.md" in shown.err


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["/no/such/file.yaml"], 2),
        ([], 2),
        ([str(SAMPLE), "--ssh", "a"], 2),
        ([str(SAMPLE), "--tp-order", "s1"], 1),
        ([str(SAMPLE), "--tp-order", ""], 2),
        ([str(SAMPLE), "--tp-order", "s1,s2,s3,s4,"], 2),
        (["--ssh", "s1", "s2", "--ssh-timeout", "nan"], 2),
        (["--ssh", "s1", "s2", "--ssh-timeout", "1e300"], 2),
        ([str(SAMPLE), "--propose-order"], 0),
        ([str(SAMPLE), "--propose-order", "--out", "/tmp/unused"], 2),
        ([str(SAMPLE), "--propose-order", "--diff", "x"], 2),
        ([str(SAMPLE), "--propose-order", "--dry-run"], 2),
        ([str(SAMPLE), "--ssh-timeout", "5"], 2),
        ([str(SAMPLE), "--out", "/dev/null"], 2),
        ([str(SAMPLE), "--diff", "/no/such/plan"], 2),
        ([str(SAMPLE), "--diff", str(SAMPLE)], 1),
    ],
)
def test_exit_status(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """0 planned, 1 something is wrong, 2 usage or could not look."""
    try:
        found = main(arguments)
    except SystemExit as stopped:  # argparse's way out
        found = int(stopped.code or 0)
    assert found == status
    assert "Traceback" not in capsys.readouterr().err


def test_json_of_a_plan_and_of_a_refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Both are one document with the same schema, so a program need not guess."""
    assert main([str(SAMPLE), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "roce-ring/plan/v1"
    assert document["environment"]["sglang"] == [SAMPLE_LINE]
    assert document["commands"]["s1"]["up"][0][:2] == ["ip", "link"]
    (tmp_path / "x.yaml").write_text("")
    assert main([str(tmp_path / "x.yaml"), "--json"]) == 1
    refused = json.loads(capsys.readouterr().out)
    assert (refused["schema"], refused["plan"]) == ("roce-ring/plan/v1", None)
    assert set(refused["findings"][0]) == {"code", "severity", "where", "seen", "expected", "fix"}


def test_an_out_that_would_lose_files_is_refused_before_hosts_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").touch()
    assert main(["--ssh", "no.such.host", "--out", str(tmp_path)]) == 2
    assert "asking" not in (said := capsys.readouterr().err)
    assert "holds files that are not a plan's" in said


def test_no_temporary_name_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLE), "--out", "/proc/x"]) == 2
    assert capsys.readouterr().err == (
        "error: /proc cannot be written (No such file or directory); name a directory you may write\n"
    )


@pytest.mark.parametrize("name", ["plan.json", "plan.yaml"])
def test_a_plan_in_the_place_of_facts_is_called_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not taken apart field by field."""
    main([str(SAMPLE), "--out", str(tmp_path / "plan")])
    capsys.readouterr()
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "s1.json").write_bytes((tmp_path / "plan" / name).read_bytes())
    for place in (tmp_path / "plan" / name, tmp_path / "facts"):
        assert main([str(place)]) == 1
        found = capsys.readouterr().err.splitlines()
        assert len(found) == 2
        assert "holds a plan; expected facts" in found[0] and "facts.json" in found[0]
    (tmp_path / "evidence.json").write_text('[{"schema": "roce-ring/evidence/v1"}]')
    assert main([str(tmp_path / "evidence.json")]) == 1
    assert "holds the doctor's evidence; expected facts" in capsys.readouterr().err


def test_the_proposal_can_be_piped_into_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    """`--tp-order "$(... --propose-order | tail -1)"`."""
    main([str(SAMPLE), "--tp-order", "s1,s3,s2,s4", "--propose-order"])
    order = capsys.readouterr().out.splitlines()[-1]
    assert order == "s1,s4,s3,s2"
    assert main([str(SAMPLE), "--tp-order", order]) == 0


def test_out_writes_everything_a_node_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plan in both forms with the same content, per-node parts, environment files with one variable a line, facts."""
    out = tmp_path / "plan"
    assert main([str(SAMPLE), "--out", str(out)]) == 0
    plan = load_plan(out / "plan.json")
    assert plan == load_plan(out / "plan.yaml")
    assert plan_hash(plan) == plan.hash
    assert yaml.safe_load((out / "plan.yaml").read_text()) == json.loads((out / "plan.json").read_text())
    head, *values = (out / "nodes" / "s3" / "sglang.env").read_text().splitlines()
    assert head.startswith("# ")
    assert " ".join(values) == SAMPLE_LINE
    assert "tc filter add" in (out / "nodes" / "s3" / "up.txt").read_text()
    assert ElementTree.parse(out / "ring.svg").getroot().tag.endswith("svg")
    assert make_plan(load_facts(out / "facts.json"))[0].hash == plan.hash
    assert not list(tmp_path.glob(".*"))
    capsys.readouterr()


def test_the_environment_file_is_usable_as_its_first_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell that sources the file cuts values at ';' without a word; the way the file names keeps all of them."""
    out = tmp_path / "plan"
    main([str(SAMPLE), "--out", str(out)])
    capsys.readouterr()
    for file in (out / "nodes" / "s3").glob("*.env"):
        head, *values = file.read_text().splitlines()
        command = head.partition("in a shell: ")[2].replace("THIS_FILE", str(file)).replace("COMMAND", "env")
        shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
        assert set(values) <= set(shown), file.name


@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    "program", [f"plan.py {SAMPLE}", f"plan.py {SAMPLE} --json", "plan.py /no/such --json", "inventory.py"]
)
def test_output_that_cannot_be_written_is_one_sentence(program: str, where: str) -> None:
    """A full disk or a closed standard output is no fault of the program: no traceback, status 2."""
    command = f"{sys.executable} {ROOT / 'mesh'}/{program} {where}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output ")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`| head -1` must not end in a message."""
    command = f"{sys.executable} {ROOT / 'mesh' / 'plan.py'} {SAMPLE} --json | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_a_plan_directory_can_be_named_where_its_file_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `--out DIR` wrote is found in DIR, by `--diff` and as facts."""
    out = tmp_path / "plan"
    main([str(SAMPLE), "--out", str(out)])
    capsys.readouterr()
    assert main([str(out), "--diff", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == SAMPLE_LINE


def test_out_replaces_an_older_plan_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--out ~` must not empty a home directory; an older plan leaves no file behind."""
    out = tmp_path / "plan"
    main([str(EXAMPLES / "eight-ring.yaml"), "--out", str(out)])
    assert (out / "nodes" / "s8").is_dir()
    main([str(SAMPLE), "--out", str(out)])
    assert not (out / "nodes" / "s8").exists()
    home = tmp_path / "home"
    home.mkdir()
    (home / "precious").write_text("x")
    capsys.readouterr()
    assert main([str(SAMPLE), "--out", str(home)]) == 2
    assert "would be lost" in capsys.readouterr().err
    assert [entry.name for entry in home.iterdir()] == ["precious"]


def test_a_failed_write_leaves_the_old_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk in the middle of writing must not leave half a plan."""
    out = tmp_path / "plan"
    main([str(SAMPLE), "--out", str(out)])
    before = (out / "plan.json").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "fsync", full)
    assert main([str(EXAMPLES / "six-ring.yaml"), "--out", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert (out / "plan.json").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan"]


def test_diff_names_what_a_change_touches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replaced card changes its MAC: the operator sees the neighbour and rule lines that go stale, and no others."""
    out = tmp_path / "plan"
    main([str(SAMPLE), "--out", str(out)])
    assert main([str(SAMPLE), "--diff", str(out / "plan.yaml")]) == 0
    assert "no change against" in capsys.readouterr().out
    changed = tmp_path / "facts.yaml"
    changed.write_text(SAMPLE.read_text().replace("02:00:00:03:00:00", "02:00:00:03:00:99"))
    assert main([str(changed), "--diff", str(out / "plan.json")]) == 1
    text = capsys.readouterr().out
    assert "s2: - ip neigh replace 10.10.2.11 lladdr 02:00:00:03:00:00 dev enp1s0f1np1 nud permanent" in text
    assert "s2: + ip neigh replace 10.10.2.11 lladdr 02:00:00:03:00:99 dev enp1s0f1np1 nud permanent" in text
    assert "s1: " not in text
    assert text.splitlines()[-1] == SAMPLE_LINE


def test_an_edited_plan_is_not_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its hash no longer covers what it says."""
    out = tmp_path / "plan"
    main([str(SAMPLE), "--out", str(out)])
    capsys.readouterr()
    file = out / "plan.json"
    file.write_text(file.read_text().replace("262144", "999999"))
    with pytest.raises(Refused, match="an unedited plan"):
        load_plan(file)


def test_the_command_of_the_package_is_the_same_program(capsys: pytest.CaptureFixture[str]) -> None:
    """`roce-ring plan` forwards every option, --help included, to the one program."""
    typer = pytest.importorskip("typer")
    from typer.testing import CliRunner

    from roce_ring.cli import inventory, plan

    app = typer.Typer()
    plan.register(app)
    inventory.register(app)
    result = CliRunner().invoke(app, ["plan", str(SAMPLE)])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == SAMPLE_LINE
    assert "--propose-order" in CliRunner().invoke(app, ["plan", "--help"]).output
    assert CliRunner().invoke(app, ["plan", "/no/such"]).exit_code == 2


def test_planner_needs_only_yaml_and_msgspec() -> None:
    """A clone on a bare node has these two packages and nothing else."""
    allowed = {"yaml", "msgspec"} | set(sys.stdlib_module_names)
    for file in (ROOT / "mesh").glob("*.py"):
        for line in file.read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and not words[1].startswith("."):
                assert words[1].split(".")[0] in allowed, f"{file.name}: {line}"
