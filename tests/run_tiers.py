"""Run the test tiers, one after the other, and say at the end which ran and why one did not.

    python tests/run_tiers.py [TIER ...]

A tier that lacks a tool installs it when it may (root on Debian or Ubuntu) and otherwise says what to install and is
left out. With CI=true a tier that could not run is a failure: a green CI run means that everything was tried.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # of a script's own imports only those from its folder work
from tests.softroce import guest, kernel  # noqa: E402

BUILD = ROOT / "build"
CI = os.environ.get("CI") == "true"
SOFTROCE = ROOT / "tests" / "softroce"
LOCAL = ROOT / "tests" / "local"
ENGINES = ROOT / "tests" / "engines"
TORCH = "torch==2.13.0"
TIER_TIMEOUT_S = 900.0

SANITIZER_ENV = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


Tools = tuple[tuple[str, str], ...]  # (program, or absolute path of a file; Debian package that brings it)


@dataclass(frozen=True)
class Tier:
    name: str
    what: str
    run: Callable[[], str]  # returns what the table should say about a tier that passed; often nothing
    tools: Tools = ()
    wants: Tools = ()  # without these the tier runs, but covers less


class NotRun(Exception):
    """Why a tier cannot run on this machine."""


def sh(*command: str | Path, **env: str) -> None:
    """Run one command from the repository's root, output shown; raises CalledProcessError or TimeoutExpired."""
    argv = [str(part) for part in command]
    print("+", " ".join(argv), flush=True)
    environment = {**os.environ, **env}
    subprocess.run(argv, cwd=ROOT, check=True, timeout=TIER_TIMEOUT_S, env=environment, stdin=subprocess.DEVNULL)


def missing_from(tools: Tools) -> Tools:
    return tuple((tool, package) for tool, package in tools if not (shutil.which(tool) or Path(tool).is_file()))


def install(tools: Tools) -> str:
    """Install what is missing where this user may; returns why something is still missing, or nothing."""
    missing = missing_from(tools)
    if not missing:
        return ""
    packages = sorted({package for _, package in missing})
    if os.geteuid() == 0 and shutil.which("apt-get"):
        try:
            sh("apt-get", "update", "-q")
            wait = ("-o", "DPkg::Lock::Timeout=300")  # for who else installs: the system's own upgrades, another run
            options = ("-qy", "--no-install-recommends")
            sh("apt-get", *wait, "install", *options, *packages, DEBIAN_FRONTEND="noninteractive")
        except subprocess.CalledProcessError:
            return f"apt-get could not install {' '.join(packages)}"
        return ""
    return f"no {', '.join(tool for tool, _ in missing)}; run: sudo apt-get install {' '.join(packages)}"


RETRIED = (1, 8)  # "tests failed", in pytest's and ctest's words; anything else is not about a test


def once_more(first: Callable[[], None], failed_only: Callable[[], None]) -> str:
    """Many tests are about time, and this machine may be busy: what failed gets a second try, alone, and the table says
    so. A test that needs it twice in a row fails."""
    try:
        first()
    except subprocess.CalledProcessError as error:
        if error.returncode not in RETRIED:
            raise
        print("\n--- some tests failed: those once more ---", flush=True)
        failed_only()
        return "unstable: some tests passed only at the second try"
    return ""


def pytest_of(*arguments: str) -> str:
    pytest = (sys.executable, "-m", "pytest", *arguments)
    return once_more(lambda: sh(*pytest), lambda: sh(*pytest, "--last-failed", "--last-failed-no-failures", "none"))


def python_tests() -> str:
    """Those whose ranks share the cores come one at a time, the others two."""
    others = pytest_of(*(f"--ignore={one}" for one in (SOFTROCE, ENGINES, LOCAL)), "-n", "2", "--dist", "loadfile")
    return "; ".join(note for note in (others, pytest_of(str(LOCAL))) if note)


def engines() -> str:
    """Released engines on the CPU, in folders of their own that the first run fills (tests/engines/environment.py)."""
    if not importlib.util.find_spec("torch"):
        sh("pip", "install", "-qq", TORCH)
    return pytest_of(str(ENGINES))


class SoftRoce:
    """The Soft-RoCE tests. Their kernel is found, or built beside the other tiers in the time these leave over."""

    def __init__(self) -> None:
        self._kernel: subprocess.Popen[str] | None = None

    def start(self) -> None:
        if not install(SOFTROCE_TOOLS):
            program = [sys.executable, str(SOFTROCE / "kernel.py")]
            self._kernel = subprocess.Popen(
                ["nice", "-n", "19", *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def run(self) -> str:
        assert self._kernel
        said = self._kernel.communicate(timeout=TIER_TIMEOUT_S)[0]
        if self._kernel.returncode:
            raise NotRun(said.strip())
        print(said, flush=True)
        # Two at a time: a guest keeps to one core. Whole files, because a file boots its ring once.
        return pytest_of(str(SOFTROCE), "-n", "2", "--dist", "loadfile")

    def stop(self) -> None:
        if self._kernel and self._kernel.poll() is None:
            self._kernel.terminate()
            self._kernel.communicate()


def native(name: str, *options: str, **env: str) -> str:
    """Configure, build and run tests/native in its own build folder."""
    folder = BUILD / f"native-{name}"
    sh("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DRR_BUILD_TESTS=ON", "-DRR_DEV=ON", *options)
    sh("cmake", "--build", folder, "--parallel", "2")
    ctest = [*no_aslr(), "ctest", "--test-dir", str(folder), "--output-on-failure", "--no-tests=error", "-j", "2"]
    if env == SANITIZER_ENV:  # a race that was seen once is a race
        sh(*ctest, **env)
        return ""
    return once_more(lambda: sh(*ctest, **env), lambda: sh(*ctest, "--rerun-failed", **env))


def no_aslr() -> list[str]:
    """GCC 12's ThreadSanitizer cannot start under newer kernels' address randomisation: switch it off if we may."""
    command = ["setarch", "--addr-no-randomize"]
    if shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    return []


def sanitized(kind: str) -> str:
    return native(kind, f"-DRR_SANITIZE={kind}", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", **SANITIZER_ENV)


def aarch64() -> str:
    # An emulated CPU is ten times slower: the tests then take fewer sizes and schedules.
    return native("aarch64", f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'cmake' / 'aarch64.cmake'}", RR_QUICK="1")


def cuda() -> str:
    sh(sys.executable, ROOT / "tests" / "compile" / "check_cuda.py")
    return ""


WHEEL_FILES = (
    "roce_ring/py.typed",
    "roce_ring/_lib/libroce_ring_proxy.so",
    "roce_ring/_lib/libroce_ring_kernels.so",
    "roce_ring/_include/roce_ring/layout.h",
    "roce_ring/kernels/roce_ring_kernels.cu",
    "roce_ring/mesh/plan.py",
    "roce_ring/mesh/examples/four-spark-ring.yaml",
    "roce_ring/ladder/shipped/pcie-hostbridge.json",
    "roce_ring/engines/sglang.py",
    "roce_ring/engines/vllm.py",
)
WHEEL_CHECK = """
import roce_ring, roce_ring.mesh.plan, roce_ring.native, sys
assert sys.prefix in roce_ring.__file__, roce_ring.__file__
"""


def wheel() -> str:
    """What a user installs: build the wheel, look inside, install it into an empty environment and use it."""
    with tempfile.TemporaryDirectory(prefix="roce-ring-wheel-") as folder:
        sh("pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
        (file,) = Path(folder).glob("*.whl")
        names = set(zipfile.ZipFile(file).namelist())
        absent = [name for name in WHEEL_FILES if name not in names]
        if absent:
            raise AssertionError(f"the wheel lacks {', '.join(absent)}")
        home = Path(folder) / "venv"
        venv.create(home, with_pip=True)
        sh(home / "bin" / "pip", "install", "-qq", file)
        subprocess.run([str(home / "bin" / "python"), "-c", WHEEL_CHECK], cwd=folder, check=True, timeout=60)
        if not missing_from(VERBS):  # the header that the marker needs comes in the same package
            sh(home / "bin" / "roce-ring-marker", "--help")
        sh(home / "bin" / "roce-ring", "plan", ROOT / "mesh" / "examples" / "four-spark-ring.yaml")
    return ""


PYTHON_TOOLS = (("ip", "iproute2"), ("unshare", "util-linux"), ("systemd-analyze", "systemd"))
VERBS = (("/usr/include/infiniband/verbs.h", "libibverbs-dev"),)
BUILD_TOOLS = (("cc", "gcc"), ("c++", "g++"))
CROSS_TOOLS = (
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
    ("qemu-aarch64-static", "qemu-user-static"),
)
SOFTROCE_TOOLS = (*kernel.TOOLS, *guest.TOOLS)
SOFT = SoftRoce()
TIERS = (
    Tier("python", "Python tests", python_tests, wants=PYTHON_TOOLS),
    Tier("engines", "SGLang, vLLM and torch.distributed over roce-ring, on the CPU", engines),
    Tier("native", "C and C++ tests", lambda: native("plain"), BUILD_TOOLS, VERBS),
    Tier("thread", "C and C++ tests under ThreadSanitizer", lambda: sanitized("thread"), BUILD_TOOLS, VERBS),
    Tier("address", "C and C++ tests under AddressSanitizer", lambda: sanitized("address"), BUILD_TOOLS, VERBS),
    Tier("undefined", "C and C++ tests under UBSan", lambda: sanitized("undefined"), BUILD_TOOLS, VERBS),
    Tier("aarch64", "C and C++ tests on 64-bit Arm (cross build, qemu-user)", aarch64, CROSS_TOOLS, VERBS),
    Tier("cuda", "kernels compile for every GPU architecture", cuda, BUILD_TOOLS),
    Tier("wheel", "the wheel holds everything and works when installed", wheel, BUILD_TOOLS, VERBS),
    Tier("softroce", "real verbs between the nodes of a ring (Soft-RoCE)", SOFT.run, SOFTROCE_TOOLS),
)


def run_tier(tier: Tier) -> tuple[str, str]:
    """(outcome, why not) of one tier; outcome is passed, FAILED or NOT RUN."""
    print(f"\n=== {tier.name}: {tier.what} ===", flush=True)
    if lacking := install(tier.tools):
        return "NOT RUN", lacking
    lacking = install(tier.wants)
    if lacking and CI:
        return "NOT RUN", lacking
    try:
        note = tier.run()
    except NotRun as error:
        return "NOT RUN", str(error)
    except subprocess.CalledProcessError as error:
        return "FAILED", f"exit status {error.returncode}: {' '.join(map(str, error.cmd))[:120]}"
    except subprocess.TimeoutExpired as error:
        return "FAILED", f"no end within {error.timeout:.0f} s: {' '.join(map(str, error.cmd))[:120]}"
    except (AssertionError, OSError) as error:
        return "FAILED", str(error)
    return "passed", "; ".join(part for part in (note, lacking and f"in part: {lacking}") if part)


def main() -> int:
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # this venv's tools
    names = [tier.name for tier in TIERS]
    parser = argparse.ArgumentParser(description="Run the test tiers and say which ran.")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"any of {', '.join(names)}; all without one")
    chosen = parser.parse_args().tiers
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"unknown tier {', '.join(unknown)}; the tiers are {', '.join(names)}")

    rows = []
    try:
        if not chosen or "softroce" in chosen:
            SOFT.start()
        for tier in TIERS:
            if not chosen or tier.name in chosen:
                start = time.monotonic()
                outcome, why = run_tier(tier)
                rows.append((tier.name, outcome, f"{time.monotonic() - start:.0f} s", why))
    finally:
        SOFT.stop()
    return report(rows)


def report(rows: list[tuple[str, str, str, str]]) -> int:
    """The table of (tier, outcome, time, why), and what is missing once more below it; the exit status."""
    print(f"\n{'tier':<10} | {'ran':<8} | {'time':>6} | why not, or what was left out")
    for name, outcome, seconds, why in rows:
        print(f"{name:<10} | {outcome:<8} | {seconds:>6} | {why}")
    print(f"{'gpu':<10} | {'by hand':<8} | {'':>6} | where there is one: python tests/gpu/run_all.py")
    absent = [name for name, outcome, _, _ in rows if outcome == "NOT RUN"]
    failed = sum(outcome == "FAILED" for _, outcome, _, _ in rows)
    print(f"tiers: {len(rows) - failed - len(absent)} passed, {failed} failed, {len(absent)} not run")
    if absent:
        verdict = "which is a failure, because CI is true" if CI else "so nothing is known about what they check"
        print(f"\n*** NOT RUN: {', '.join(absent)}: {verdict} ***")
    return 1 if failed or (CI and absent) else 0


if __name__ == "__main__":
    sys.exit(main())
