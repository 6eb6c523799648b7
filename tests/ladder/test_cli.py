"""`roce-ring ladder` as a person or a script meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(typed: Run) -> Run:
    return partial(typed, "ladder")


def test_explain_names_the_mode_first(run: Run) -> None:
    code, out, _ = run("explain", "81920", "--ladder", "pcie-hostbridge")
    assert code == 0
    assert out.startswith("81,920 bytes: full_phased\n")


@pytest.mark.parametrize("size", ["0", "-1", "80K", "1e3", "9" * 5000, ""])
def test_a_size_that_is_none_is_refused(run: Run, size: str) -> None:
    code, _, err = run("explain", "--", size)
    assert code == 2
    assert "expected a whole number of bytes from 1 to 1073741824" in err


def test_check_says_what_is_wrong_and_fails(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("{}")
    code, out, _ = run("check", str(file))
    assert (code, "says schema None, expected 'roce-ring/ladder/v1'" in out) == (1, True)
    code, out, _ = run("check", str(file), "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    for absent in (str(tmp_path / "absent.json"), "shm-cpux"):
        code, _, err = run("check", absent)
        assert (code, "absent.json" in err or "there is no ladder 'shm-cpux'" in err) == (2, True)
    code, out, _ = run("check", "shm-cpu")
    assert (code, out.startswith("right: shipped shm-cpu")) == (0, True)


def test_what_show_prints_is_a_right_ladder(run: Run, tmp_path: Path) -> None:
    """The way to begin a ladder of one's own."""
    code, out, _ = run("show", "roce-ring-mesh", "--json")
    assert code == 0
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(json.loads(out)["ladders"][0]["file"]))
    assert run("check", str(file))[0] == 0
    assert run("diff", str(file), "roce-ring-mesh")[0] == 0
    assert run("diff", str(file), "pcie-switch")[0] == 1


def test_an_unknown_name_lists_the_known_ones(run: Run) -> None:
    code, _, err = run("show", "roce-ring-mash")
    assert code == 2
    assert "there is no ladder 'roce-ring-mash'" in err
    assert "roce-ring-mesh" in err


@pytest.mark.parametrize(
    "arguments", [["show"], ["check", "shm-cpu"], ["diff", "shm-cpu", "shm-cuda"], ["explain", "1"]]
)
def test_json_has_a_schema(run: Run, arguments: list[str]) -> None:
    _, out, _ = run(*arguments, "--json")
    assert json.loads(out)["schema"] == f"roce-ring/ladder-{arguments[0]}/v1"
