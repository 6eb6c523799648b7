"""Every knob: names, bounds, aliases, and that a mistake is one sentence which says how to fix it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from roce_ring.errors import ConfigError
from roce_ring.settings import KNOBS, MODES, Settings, env_name

ROOT = Path(__file__).resolve().parents[2]


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ)
    return caught.value.message


def test_an_empty_environment_gives_the_defaults_and_foreign_names_are_left_alone() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"PATH": "", "B12X_ROCE_SPIN_LIMIT": "", "DSV41_ROCE_RING": "1"}) == Settings()


def test_the_planners_environment_line_is_understood() -> None:
    """The line that users of other projects have in their start scripts."""
    line = (
        "DSV41_ROCE_RING=1 SGLANG_ROCE_ALLREDUCE=1 SGLANG_ROCE_MAX_SIZE=262144 DSV41_ROCE_GATHER=262144 "
        "B12X_ROCE_HCA=rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1 B12X_ROCE_PEER_HCA_MAPS=1=1/3,2=0/3,3=0/2;"
        "0=0/2,2=1/3,3=1/2;0=1/2,1=0/2,3=1/3;0=1/3,1=0/3,2=0/2 B12X_ROCE_TWO_WAVE_THRESHOLD_BYTES=0"
    )
    settings = Settings.from_env(dict(pair.split("=", 1) for pair in line.split()))
    assert (settings.max_bytes, settings.gather_bytes, settings.two_wave_threshold_bytes) == (262144, 262144, 0)
    assert settings.hca.split(",")[3] == "roceP2p1s0f1"
    assert settings.peer_hca_maps.startswith("1=1/3,2=0/3,3=0/2;0=0/2")


@pytest.mark.parametrize("key", KNOBS)
def test_every_knob_is_read_under_each_of_its_names(key: str) -> None:
    knob, default = KNOBS[key], getattr(Settings(), key)
    value = {"hca": "a,b", "peer_hca_maps": "1=0/1;0=0/1", "name": "job-2", "mode": "ring", "provider": "shm"}.get(key)
    if value is None:
        value = "/x/y" if isinstance(default, str) else str(int((knob.low or 0) + 2))
    base = Settings(hca="a,b") if key == "peer_hca_maps" else Settings(forward_chunk_bytes=4096)
    for name in (env_name(key), *knob.aliases):
        if key == "forward_window_bytes":
            value = "4096"
        assert str(getattr(Settings.from_env({name: value}, base), key)).removesuffix(".0") == value


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"ROCE_RING_MAXBYTES": "1"}, "ROCE_RING_MAXBYTES is not a setting; did you mean ROCE_RING_MAX_BYTES?"),
        ({"ROCE_RING_idle_spins": "1"}, "ROCE_RING_idle_spins is not a setting; did you mean ROCE_RING_IDLE_SPINS?"),
        ({"ROCE_RING_QQQ": "1"}, "ROCE_RING_QQQ is not a setting"),
        ({"ROCE_RING_MAX_BYTES": ""}, "ROCE_RING_MAX_BYTES: set but empty; unset it or give it a value"),
        ({"SGLANG_ROCE_MAX_SIZE": " "}, "SGLANG_ROCE_MAX_SIZE: set but empty"),
        ({"ROCE_RING_MAX_BYTES": "256K"}, "expected a whole number of bytes from 16 to 1073741824, got '256K'"),
        ({"ROCE_RING_MAX_BYTES": "1.5"}, "expected a whole number of bytes"),
        ({"ROCE_RING_MAX_BYTES": "15"}, "from 16 to 1073741824, got '15'"),
        ({"ROCE_RING_LATE_S": "nan"}, "expected a number of seconds from 0.01 to 3600, got 'nan'"),
        ({"ROCE_RING_LATE_S": "inf"}, "expected a number of seconds from 0.01 to 3600"),
        ({"ROCE_RING_DEAD_PEER_S": "0"}, "expected a number of seconds from 1 to 600, got '0'"),
        ({"ROCE_RING_NAP_US": "0"}, "expected a whole number of microseconds from 1 to 1000, got '0'"),
        ({"ROCE_RING_PROXY_CPU": "-2"}, "expected a whole number from -1 to 4095, got '-2'"),
        ({"ROCE_RING_IDLE_SPINS": "9" * 400}, "expected a whole number of polls"),
        ({"ROCE_RING_PROVIDER": "verb"}, "expected one of auto, shm, verbs, pcie, got 'verb'; did you mean verbs?"),
        ({"ROCE_RING_MODE": "full-phased"}, "did you mean full_phased?"),
        ({"ROCE_RING_NAME": "a/b"}, "expected up to 48 letters"),
        ({"ROCE_RING_HCA": "a,,b"}, "expected 1 to 8 HCA names joined by commas"),
        ({"B12X_ROCE_PEER_HCA_MAPS": "0/1"}, "expected one section per rank joined by ';'"),
        (
            {"ROCE_RING_MAX_BYTES": "4096", "SGLANG_ROCE_MAX_SIZE": "8192"},
            "ROCE_RING_MAX_BYTES=4096 and SGLANG_ROCE_MAX_SIZE=8192 are two names of one setting with different values",
        ),
        ({"B12X_ROCE_PEER_HCA_MAPS": "1=0/1;0=0/1"}, "peer_hca_maps is set without hca"),
        ({"ROCE_RING_LATE_S": "300"}, "late_s 300 is not below peer_timeout_s 300"),
        ({"ROCE_RING_FORWARD_WINDOW_BYTES": "4096"}, "forward_window_bytes 4096 is below forward_chunk_bytes 32768"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_way_out(environ: dict[str, str], sentence: str) -> None:
    message = refusal(environ)
    assert sentence in message
    assert "\n" not in message


def test_two_names_with_one_value_are_fine() -> None:
    environ = {"ROCE_RING_MAX_BYTES": "4096", "SGLANG_ROCE_MAX_SIZE": " 4096 ", "ROCE_RING_LATE_S": "2"}
    assert Settings.from_env(environ) == Settings(max_bytes=4096, late_s=2.0)


def test_all_problems_are_reported_at_once() -> None:
    message = refusal({"ROCE_RING_MAX_BYTES": "x", "ROCE_RING_LATEST_S": "1", "DSV41_ROCE_GATHER": ""})
    for name in ("ROCE_RING_MAX_BYTES", "ROCE_RING_LATEST_S", "DSV41_ROCE_GATHER"):
        assert name in message


def test_a_file_holds_the_same_settings_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "ring.yaml"
    file.write_text("max_bytes: 4096\nlate_s: 2\nname: lab\n")
    base = Settings.from_file(file)
    assert base == Settings(max_bytes=4096, late_s=2.0, name="lab")
    assert Settings.from_env({"ROCE_RING_MAX_BYTES": "8192"}, base) == Settings(max_bytes=8192, late_s=2.0, name="lab")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("max_byte: 1", "ring.yaml: max_byte is not a setting; did you mean max_bytes?"),
        ("max_bytes: '4096'", "max_bytes: expected a whole number of bytes"),
        ("max_bytes: true", "max_bytes: expected a whole number of bytes"),
        ("max_bytes: 4096.0", "max_bytes: expected a whole number of bytes"),
        ("late_s: 0", "late_s: expected a number of seconds from 0.01 to 3600, got '0'"),
        ("name: ''", "name: expected up to 48 letters"),
        ("name: 5", "name: expected up to 48 letters"),
        ("", "ring.yaml is empty, expected a mapping"),
        ("- 1", "ring.yaml holds a list, expected a mapping"),
        ("a: [", "ring.yaml is not YAML"),
        ("1: 2", "1 is not a setting"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "ring.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Settings.from_file(file)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"mode": "x"}, "settings: mode: expected one of auto, full"),
        ({"late_s": "a"}, "late_s: expected a number of seconds from 0.01 to 3600, got 'a'"),
        ({"max_bytes": -5}, "max_bytes: expected a whole number of bytes from 16 to 1073741824, got '-5'"),
        (
            {"name": "a/../../b", "nap_us": 0},
            "nap_us: expected a whole number of microseconds from 1 to 1000, got '0'; name",
        ),
    ],
)
def test_settings_made_in_code_are_checked_too(given: dict[str, object], sentence: str) -> None:
    """A name is part of a path and a mode is looked up: neither may get that far."""
    with pytest.raises(ConfigError) as caught:
        Settings(**given)  # type: ignore[arg-type]
    assert sentence in caught.value.message
    assert Settings(late_s=2).agreement() == Settings(late_s=2.0).agreement()


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read settings file .*none\.yaml: no such file or directory"):
        Settings.from_file(tmp_path / "none.yaml")


def test_what_ranks_must_agree_on_leaves_out_what_belongs_to_one_host() -> None:
    mine, theirs = Settings(), Settings(proxy_cpu=3, run_dir="/x", idle_spins=5, plan="/elsewhere", hca="mlx5_0")
    assert mine.agreement() == theirs.agreement()
    assert mine.hash() == theirs.hash() != Settings(max_bytes=4096).hash()


def test_modes_are_the_kernels_modes() -> None:
    """The list of modes has one home; this copy only spares a start of the native library to check a name."""
    defined = re.findall(r"^RR_MODE\((\w+),", (ROOT / "kernels" / "modes.def").read_text(), re.MULTILINE)
    assert tuple(name.lower() for name in defined) == MODES


def test_there_are_at_most_twenty_knobs() -> None:
    """A knob that nobody turns is a knob that somebody gets wrong. Take one away before adding the next."""
    assert len(KNOBS) <= 20


def test_the_documentation_is_current() -> None:
    document = runpy.run_path(str(ROOT / "tools" / "settings_doc.py"))["document"]
    assert (ROOT / "docs" / "settings.md").read_text() == document(), "python tools/settings_doc.py > docs/settings.md"
