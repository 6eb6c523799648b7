"""The examples that put SGLang on nodes: every reader of the planner's file finds what was planned, and the files say
what they mean."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from mesh.loading import load_facts
from mesh.output import write
from mesh.planner import make_plan
from mesh.text import CONSUMERS, variables
from roce_ring.engines.switches import Switches
from tests.marker.test_deploy import DEPLOY, analyze, setting
from tests.mesh.rings import EXAMPLES

SGLANG = DEPLOY / "sglang"
UNIT = SGLANG / "sglang.service"
# Compose's own: what it does not know it refuses, but there is no docker here to ask.
SERVICE_KEYS = {
    "image", "command", "env_file", "network_mode", "ipc", "ulimits", "devices", "volumes", "deploy", "restart",
}  # fmt: skip


def of_systemd(text: str) -> Iterator[tuple[str, str]]:
    """systemd.exec(5): a line that begins with # or ; is a comment, quotes and backslashes mean something, nothing else
    does."""
    for line in text.splitlines():
        if line and line[0] not in "#;":
            assert not set(line) & set("\"'\\"), "would have to be quoted"
            name, value = line.split("=", 1)
            yield name, value.strip()


def of_compose(text: str) -> Iterator[tuple[str, str]]:
    """An env file of docker and compose: # begins a comment after a space, $ a variable (compose), quotes are taken off
    (compose) or not (docker)."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            assert not set(line) & set("\"'$"), "docker and compose read it differently"
            assert " #" not in line
            name, value = line.split("=", 1)
            yield name, value


def of_a_shell(text: str) -> Iterator[tuple[str, str]]:
    """The command in the file's first line."""
    (command,) = re.findall(r"in a shell: (.*)$", text, re.M)
    command = command.replace("THIS_FILE", "planned.env").replace("COMMAND", "env -0")
    Path("planned.env").write_text(text)
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    for item in done.stdout.rstrip("\0").split("\0"):
        name, value = item.split("=", 1)
        if name not in ("PATH", "PWD"):  # the shell's own
            yield name, value


@pytest.mark.parametrize("read", [of_systemd, of_compose, of_a_shell])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_reader_finds_what_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consumer: str, read: Callable[[str], Iterator[tuple[str, str]]]
) -> None:
    """The values hold ';', and NCCL's begins with '='."""
    monkeypatch.chdir(tmp_path)
    facts = load_facts(EXAMPLES / "four-spark-ring.yaml")
    plan, findings = make_plan(facts)
    write(tmp_path / "plan", plan, facts, findings)
    for node in plan.nodes:
        text = (tmp_path / "plan" / "nodes" / node.host / f"{consumer}.env").read_text()
        assert dict(read(text)) == variables(plan, consumer, node.rank)


def test_one_variable_less_is_the_way_back() -> None:
    plan, _ = make_plan(load_facts(EXAMPLES / "four-spark-ring.yaml"))
    planned = variables(plan, "sglang", 0)
    assert Switches.from_env(planned, "sglang").on
    (said,) = set(re.findall(r"remove (\w+) from sglang\.env", (SGLANG / "compose.yaml").read_text()))
    del planned[said]
    assert not Switches.from_env(planned, "sglang").on
    assert f"remove `{said}`" in (DEPLOY / "README.md").read_text()


def test_systemd_knows_every_line_of_the_example(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text().replace("/opt/sglang/bin/python", "/bin/true").replace("roce-ring-agent.service ", "")
    )
    assert analyze("verify", "--man=no", copy) == ""
    assert setting(UNIT, "LimitMEMLOCK") == ["infinity"]
    assert setting(UNIT, "EnvironmentFile")[0].endswith("sglang.env")


def test_the_compose_file_gives_a_rank_what_rdma_needs() -> None:
    (service,) = yaml.safe_load((SGLANG / "compose.yaml").read_text())["services"].values()
    assert set(service) == SERVICE_KEYS
    assert (service["network_mode"], service["ipc"], service["ulimits"]) == ("host", "host", {"memlock": -1})
    assert service["devices"] == ["/dev/infiniband:/dev/infiniband"]
    assert "/run/roce-ring:/run/roce-ring" in service["volumes"]
    assert service["env_file"] == "sglang.env"


def test_both_examples_start_the_same_command_and_ask_for_a_custom_all_reduce() -> None:
    (service,) = yaml.safe_load((SGLANG / "compose.yaml").read_text())["services"].values()
    (unit,) = setting(UNIT, "ExecStart")
    of_unit = {word for word in shlex.split(unit) if word.startswith("--")}
    of_compose_file = {word.partition("=")[0] for word in service["command"] if word.startswith("--")}
    assert of_unit == of_compose_file - {"--host"}
    assert "--disable-custom-all-reduce" not in of_compose_file


def test_the_image_adds_our_wheel_and_nothing_else() -> None:
    lines = [line for line in (SGLANG / "Containerfile").read_text().splitlines() if line and line[0] not in "# "]
    assert [line.split()[0] for line in lines] == ["ARG", "FROM", "ARG", "COPY", "ARG", "RUN", "RUN", "HEALTHCHECK"]
    given = {line.split()[1].partition("=")[0] for line in lines if line.startswith("ARG")}
    text = "\n".join(lines)
    assert all(f"${{{name}}}" in text or f"${name}" in text for name in given)
    assert "latest" not in text
