"""What the marker asks of the device, and how it ends. Against a fake rdma-core: not proven on hardware."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from errno import EACCES, EBUSY, EINVAL, EIO, ENOMEM, ENOSYS, EOPNOTSUPP, EPERM
from pathlib import Path

import pytest

from mesh.loading import load_facts
from mesh.marker import argv
from mesh.planner import make_plan
from mesh.things import describe
from tests.marker.lab import Lab, until
from tests.mesh.rings import EXAMPLES

DEVICE = ("--device", "rocep1s0f0")
IN_WORDS = "UDP source port 65535 -> EtherType 0x88b5"
SPORT = "sport=65535,ethertype=0x88b5"
ONE = (*DEVICE, "--mark", SPORT)
FAR = ("--mark", "dst=10.10.2.10,ethertype=0x88b6", "--mark", "dst=10.10.0.11,ethertype=0x88b5")

ONE_MADE = [
    "open rocep1s0f0",
    "matcher 1: RDMA-TX, priority 1, mask 28:ffff of 384 bytes",
    "action 1: RDMA-TX, 10030010000088b5",
    "flow 1: matcher 1, value 28:ffff of 384 bytes, 1 action of type 3: 1",
]
ONE_GONE = ["destroy flow 1", "destroy action 1", "destroy matcher 1"]


def test_source_port_mark_is_one_rule_and_goes_in_reverse(lab: Lab) -> None:
    marker = lab.ready(*ONE)
    assert lab.calls() == ONE_MADE
    marker.terminate()
    assert marker.communicate(timeout=10) == ("", "")
    assert marker.returncode == 0
    assert lab.calls() == [*ONE_MADE, *ONE_GONE, "close"]


def test_destination_marks_go_before_the_source_port_mark(lab: Lab) -> None:
    """Both match a frame to a far node with label 16383: the count of relays left must win."""
    marker = lab.ready(*ONE, *FAR)
    marker.send_signal(signal.SIGINT)
    assert marker.wait(timeout=10) == 0
    assert lab.calls() == [
        *ONE_MADE,
        "matcher 2: RDMA-TX, priority 0, mask 6:ffff 60:ffffffff of 384 bytes",
        "action 2: RDMA-TX, 10030010000088b6",
        "flow 2: matcher 2, value 6:08 60:0a0a020a of 384 bytes, 1 action of type 3: 2",
        "matcher 3: RDMA-TX, priority 0, mask 6:ffff 60:ffffffff of 384 bytes",
        "action 3: RDMA-TX, 10030010000088b5",
        "flow 3: matcher 3, value 6:08 60:0a0a 63:0b of 384 bytes, 1 action of type 3: 3",
        "destroy flow 3", "destroy action 3", "destroy matcher 3",
        "destroy flow 2", "destroy action 2", "destroy matcher 2",
        *ONE_GONE, "close",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["four-spark-ring", "eight-ring"])
def test_every_marker_of_a_plan_is_taken_and_leaves_nothing(lab: Lab, name: str) -> None:
    plan, _ = make_plan(load_facts(EXAMPLES / f"{name}.yaml"))
    for marker in plan.nodes[0].markers:
        lab.record.unlink(missing_ok=True)
        status, errors = lab.run(*argv(marker)[1:], "--check", RR_FAKE_DEVICES=f"{marker.rdma}=mlx5")
        assert (status, errors) == (0, [])
        calls = lab.calls()
        assert sum(call.startswith("flow ") for call in calls) == len(marker.marks)
        assert sum(call.startswith("destroy flow ") for call in calls) == len(marker.marks)
        assert calls[-1] == "close"


@pytest.mark.parametrize(
    ("fails", "error", "said", "calls"),
    [
        ("ibv_get_device_list", EPERM, "the RDMA devices cannot be listed: Operation not permitted; run it as", []),
        ("ibv_get_device_list", ENOSYS, "there is no RDMA device rocep1s0f0 here: this kernel has no RDMA at all", []),
        ("ibv_open_device", EACCES, "rocep1s0f0 cannot be opened: Permission denied; run it as root, or with", []),
        (
            "mlx5dv_create_flow_matcher", EOPNOTSUPP,
            f"refused the match of '{IN_WORDS}': Operation not supported; this device, its firmware or this kernel",
            [ONE_MADE[0]],
        ),
        (
            "mlx5dv_create_flow_action_modify_header", EINVAL,
            f"refused the rewrite of '{IN_WORDS}': Invalid argument; this kernel or firmware does not know such a rule",
            [*ONE_MADE[:2]],
        ),
        (
            "mlx5dv_create_flow", EPERM,
            f"rocep1s0f0 refused the rule of '{IN_WORDS}': Operation not permitted; run it as root, or with",
            [*ONE_MADE[:3]],
        ),
        ("mlx5dv_create_flow", EBUSY, "another program holds a rule for the same frames", [*ONE_MADE[:3]]),
        ("mlx5dv_create_flow", ENOMEM, "the device has no room for another rule", [*ONE_MADE[:3]]),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_and_leaves_nothing(
    lab: Lab, fails: str, error: int, said: str, calls: list[str]
) -> None:
    status, errors = lab.run(*ONE, RR_FAKE_FAIL=f"{fails}#1={error}")
    assert status == 1
    (line,) = errors
    assert said in line
    made = [call.split()[0] for call in calls[1:]]
    undone = [f"destroy {part} 1" for part in reversed(made)] + (["close"] if calls else [])
    assert lab.calls() == [*calls, f"{fails} fails", *undone]
    assert not [file for file in lab.run_dir.glob("*") if file.stat().st_size]


def test_a_second_rule_that_fails_takes_the_first_with_it(lab: Lab) -> None:
    status, (line,) = lab.run(*ONE, *FAR, RR_FAKE_FAIL=f"mlx5dv_create_flow#2={ENOMEM}")
    assert status == 1
    assert "refused the rule of 'destination 10.10.2.10 -> EtherType 0x88b6'" in line
    assert lab.calls()[-6:] == ["destroy action 2", "destroy matcher 2", *ONE_GONE, "close"]


def test_a_rule_that_does_not_go_is_reported_and_the_rest_still_goes(lab: Lab) -> None:
    marker = lab.ready(*ONE, *FAR, RR_FAKE_FAIL=f"ibv_destroy_flow#2={EIO}")
    marker.terminate()
    _, errors = marker.communicate(timeout=10)
    assert marker.returncode == 1
    assert errors == (
        "roce-ring-marker: rocep1s0f0 did not let go of a rule: Input/output error; it goes with this process\n"
    )
    assert lab.calls()[-4:] == [*ONE_GONE, "close"]


@pytest.mark.parametrize(
    ("devices", "device", "said"),
    [
        ("", "rocep1s0f0", "there is no RDMA device rocep1s0f0 here; the devices are: none at all"),
        ("a=mlx5,b=mlx5", "rocep1s0f0", "there is no RDMA device rocep1s0f0 here; the devices are: a, b"),
        ("rxe0=rxe", "rxe0", "rxe0 is not a ConnectX device (its driver is not mlx5)"),
    ],
)
def test_wrong_device(lab: Lab, devices: str, device: str, said: str) -> None:
    status, (line,) = lab.run("--device", device, "--mark", SPORT, RR_FAKE_DEVICES=devices)
    assert status == 1
    assert line.startswith(said)


def test_missing_or_old_libraries_are_named(lab: Lab, tmp_path: Path) -> None:
    libraries = tmp_path / "old"
    libraries.mkdir()
    (libraries / "libibverbs.so.1").write_bytes(b"not a library")
    status, (line,) = lab.run(*ONE, LD_LIBRARY_PATH=str(libraries))
    assert status == 1
    assert line.startswith("libibverbs.so.1 cannot be loaded (")
    assert line.endswith("); install rdma-core (Debian, Ubuntu: libibverbs1)")


def test_bad_arguments_are_all_named_at_once(lab: Lab) -> None:
    status, errors = lab.run(
        "--device", "../x", "--mark", "sport=80,ethertype=1", "--mark", "dst=10.0.0.1,sport=65535,ethertype=0x8b5",
        "--mark", "dst=224.0.0.1,dst=10.0.0.300,color", "--mark", "etherype=0x88b5",
        "--mark", "ethertype=0x800,sport=+1", "--mark", "dst=127.0.0.1,ethertype=0x88b5",
        "--for", "7201", "--check", "--bogus", "left", "over", "--mark",
    )  # fmt: skip
    assert status == 2
    assert errors == [
        "--device '../x' cannot be an RDMA device's name; 'rdma link' lists the names",
        "--mark 'sport=80,ethertype=1': sport '80' is not a RoCE v2 source port, 49152 to 65535",
        "--mark 'sport=80,ethertype=1': ethertype '1' is not from 0x0600 to 0xffff, or is IPv4's own 0x0800",
        "--mark 'dst=10.0.0.1,sport=65535,ethertype=0x8b5': give one of dst=ADDRESS and sport=PORT, and ethertype=TYPE",
        "--mark 'dst=224.0.0.1,dst=10.0.0.300,color': dst 224.0.0.1 is no port's address (0.x, 127.x and 224.x up)",
        "--mark 'dst=224.0.0.1,dst=10.0.0.300,color': dst is given twice",
        "--mark 'dst=224.0.0.1,dst=10.0.0.300,color': 'color' is not KEY=VALUE",
        "--mark 'etherype=0x88b5': unknown key 'etherype'; the keys are dst, sport and ethertype",
        "--mark 'ethertype=0x800,sport=+1': ethertype '0x800' is not from 0x0600 to 0xffff, or is IPv4's own 0x0800",
        "--mark 'ethertype=0x800,sport=+1': sport '+1' is not a RoCE v2 source port, 49152 to 65535",
        "--mark 'dst=127.0.0.1,ethertype=0x88b5': dst 127.0.0.1 is no port's address (0.x, 127.x and 224.x up)",
        "--for '7201' is not a number of seconds from 1 to 7200",
        "--bogus is not an option, or takes no value; roce-ring-marker --help lists the options",
        "--mark needs a value after it; roce-ring-marker --help lists the options",
        "'left' belongs to no option",
        "'over' belongs to no option",
        "--check ends at once: leave out --for",
    ]  # fmt: skip
    assert lab.calls() == []


def test_marks_that_contradict_or_are_too_many_are_refused(lab: Lab) -> None:
    many = [word for n in range(1, 18) for word in ("--mark", f"dst=10.0.0.{n},ethertype=0x88b5")]
    status, errors = lab.run(*DEVICE, *many, "--mark", "dst=10.0.0.3,ethertype=0x88b6")
    assert status == 2
    assert errors == [
        "--mark 'dst=10.0.0.17,ethertype=0x88b5': more than 16 marks",
        "--mark 'dst=10.0.0.3,ethertype=0x88b6': another --mark matches the same frames; leave one of them out",
    ]
    status, errors = lab.run()
    assert (status, errors) == (2, ["--device NAME is missing", "--mark is missing: nothing to do"])


def test_terminal_codes_in_an_argument_are_not_printed(lab: Lab) -> None:
    _, errors = lab.run("--device", "a\x1b[2J\nb", "--mark", SPORT)
    assert errors == ["--device 'a?[2J?b' cannot be an RDMA device's name; 'rdma link' lists the names"]


def test_help_names_every_option(lab: Lab) -> None:
    process = lab.start("--help")
    text, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert all(
        option in text for option in ("--device", "--mark", "--check", "--stop", "--for", "--run-dir", "2 wrong")
    )


def test_a_second_marker_on_the_device_is_refused(lab: Lab) -> None:
    first = lab.ready(*ONE)
    for more in ((), ("--check",)):
        status, (line,) = lab.run(*ONE, *more)
        assert status == 1
        assert line.startswith(f"rocep1s0f0 already has a marker, process {first.pid} (its marks are in ")
    lab.ready("--device", "rocep1s0f1", "--mark", SPORT)  # another device is another matter


def test_stop_ends_the_marker_of_one_device_and_waits_for_it(lab: Lab) -> None:
    first, other = lab.ready(*ONE), lab.ready("--device", "rocep1s0f1", "--mark", SPORT)
    assert lab.run(*DEVICE, "--stop") == (0, [])
    assert lab.calls()[-4:] == [*ONE_GONE, "close"]
    assert first.wait(timeout=1) == 0
    assert other.poll() is None
    assert lab.run(*DEVICE, "--stop") == (0, [])  # there is none any more, and that was the wish
    first = lab.ready(*ONE)
    first.kill()
    first.wait(timeout=10)
    assert lab.run(*DEVICE, "--stop") == (0, [])


def test_stop_needs_neither_rdma_nor_marks(lab: Lab) -> None:
    assert lab.run(*DEVICE, "--stop", LD_LIBRARY_PATH="/nowhere") == (0, [])
    status, errors = lab.run(*ONE, "--stop")
    assert (status, errors) == (2, ["--stop goes with --device and --run-dir alone"])


def test_folders_it_makes_are_closed_to_others(lab: Lab) -> None:
    """/run/roce-ring also holds the ranks' sockets, and they refuse a folder that others can enter."""
    lab.run_dir /= "a/b"
    lab.ready(*ONE)
    for folder in (lab.run_dir, lab.run_dir.parent, lab.run_dir.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o750


def test_state_file_that_cannot_be_made(lab: Lab) -> None:
    lab.run_dir.write_text("in the way")
    status, (line,) = lab.run(*ONE)
    assert status == 1
    assert line.startswith(f"{lab.run_dir}/rocep1s0f0.state cannot be opened: Not a directory; ")
    assert lab.calls() == ["open rocep1s0f0", "close"]


def test_bounded_run_ends_by_itself(lab: Lab) -> None:
    start = time.monotonic()
    assert lab.run(*ONE, "--for", "1") == (0, [])
    assert 1 <= time.monotonic() - start < 10
    assert lab.calls() == [*ONE_MADE, *ONE_GONE, "close"]


def test_a_stop_while_the_rules_are_made_still_removes_them(lab: Lab) -> None:
    assert lab.run(*ONE, *FAR, RR_FAKE_RAISE=f"mlx5dv_create_flow#2={int(signal.SIGTERM)}") == (0, [])
    assert lab.calls()[-4:] == [*ONE_GONE, "close"]


def test_lost_device_ends_the_marker_and_other_events_do_not(lab: Lab, tmp_path: Path) -> None:
    """A driver reload takes the rules along: the service manager must see a failure, and start the marker again."""
    for last in (b"F", b"E"):
        lab.record.unlink(missing_ok=True)
        events = tmp_path / f"events-{last.decode()}"
        os.mkfifo(events)
        marker = lab.ready(*ONE, RR_FAKE_EVENTS=str(events))
        with events.open("wb", buffering=0) as pipe:
            pipe.write(b"P")
            until(lambda: any(call.startswith("event ") for call in lab.calls()), "the port event was read")
            assert marker.poll() is None
            pipe.write(last)
            _, errors = marker.communicate(timeout=10)
        assert marker.returncode == 1
        assert errors.startswith("roce-ring-marker: rocep1s0f0 is gone (driver reloaded, or a fatal device error)")
        assert lab.calls()[-4:] == [*ONE_GONE, "close"]


def test_marker_outlives_whoever_started_it_and_read_its_output(lab: Lab) -> None:
    """The data plane survives a restart of the node agent."""
    marker = lab.ready(*ONE, RR_FAKE_FAIL=f"ibv_destroy_flow#1={EIO}")  # it will have something to say, to nobody
    assert marker.stdout is not None
    assert marker.stderr is not None
    marker.stdout.close()
    marker.stderr.close()
    time.sleep(0.1)
    assert marker.poll() is None
    marker.terminate()
    assert marker.wait(timeout=10) == 1
    assert lab.calls()[-3:] == [*ONE_GONE[1:], "close"]
    lab.started.remove(marker)


@pytest.mark.parametrize("abstract", [False, True])
def test_service_manager_is_told(lab: Lab, tmp_path: Path, abstract: bool) -> None:
    name = f"@roce-ring-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        manager.settimeout(10)
        marker = lab.ready(*ONE, *FAR, NOTIFY_SOCKET=name, WATCHDOG_USEC="100000")
        status = "; ".join(
            ["UDP source port 65535 -> EtherType 0x88b5", "destination 10.10.2.10 -> EtherType 0x88b6",
             "destination 10.10.0.11 -> EtherType 0x88b5"]
        )  # fmt: skip
        assert manager.recv(4096).decode() == f"READY=1\nSTATUS={status}"
        assert manager.recv(4096) == b"WATCHDOG=1"
        assert manager.recv(4096) == b"WATCHDOG=1"
        marker.terminate()
        last = b"WATCHDOG=1"
        while last == b"WATCHDOG=1":
            last = manager.recv(4096)
        assert last == b"STOPPING=1"
        assert marker.wait(timeout=10) == 0


def test_a_manager_that_does_not_read_keeps_no_marker_from_ending(lab: Lab, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        marker = lab.ready(*ONE, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="2000")
        time.sleep(0.3)  # more signs of life than the socket has room for, which is 10 datagrams
        marker.terminate()
        assert marker.communicate(timeout=10) == ("", "")
        assert marker.returncode == 0


def test_a_watchdog_of_whoever_started_us_is_not_ours(lab: Lab, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environment = {"WATCHDOG_USEC": "2000", "WATCHDOG_PID": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
        marker = lab.ready(*ONE, **environment)
        time.sleep(0.05)
        marker.terminate()
        assert marker.wait(timeout=10) == 0
        assert manager.recv(4096).startswith(b"READY=1")
        assert manager.recv(4096) == b"STOPPING=1"


def test_plan_and_program_describe_a_mark_in_the_same_words(lab: Lab) -> None:
    plan, _ = make_plan(load_facts(EXAMPLES / "eight-ring.yaml"))
    marker = plan.nodes[0].markers[0]
    process = lab.start(*argv(marker)[1:], RR_FAKE_DEVICES=f"{marker.rdma}=mlx5")
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == f"ready: {marker.rdma}: {'; '.join(describe(mark) for mark in marker.marks)}\n"


def test_no_manager_is_no_failure(lab: Lab) -> None:
    marker = lab.ready(*ONE, NOTIFY_SOCKET=str(lab.run_dir / "nobody"))
    marker.terminate()
    _, errors = marker.communicate(timeout=10)
    assert marker.returncode == 0
    assert errors.count("the service manager cannot be told") == 2


def test_help_runs_without_rdma(built: tuple[list[str], Path]) -> None:
    """The program starts on a machine without rdma-core: it links with nothing of it."""
    command, _ = built
    assert subprocess.run([*command, "--help"], capture_output=True, check=False, timeout=20).returncode == 0


def test_with_the_real_rdma_core(lab: Lab) -> None:
    """Every symbol is there, in the version asked for: the program gets as far as looking for the device."""
    try:
        ctypes.CDLL("libmlx5.so.1")
    except OSError as error:
        pytest.skip(f"{error} (Debian: ibverbs-providers)")
    if os.environ.get("RR_MARKER_EMULATOR"):
        pytest.skip("the emulated machine has no rdma-core")
    status, (line,) = lab.run("--device", "no_such_device0", "--mark", SPORT, LD_LIBRARY_PATH="")
    assert status == 1
    assert line.startswith("there is no RDMA device no_such_device0 here")
