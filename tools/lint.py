"""Every check that reads the source and runs none of it. All of them run; the failed ones are named at the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What belongs to the machine someone worked on, not to the project: local paths, and the names of package hosts, which
# a user's own pip and apt configuration decides. (The one-letter classes keep this file from matching itself.)
FORBIDDEN = re.compile(
    r"/wor[k]/|\.\./share[d]\b|/tmp/brie[f]|\.librar[y]/|sessio[n] notes"
    r"|pyp[i]\.org|pythonhoste[d]|deb\.debia[n]\.|npmj[s]\.|conda\.anacond[a]",
    re.IGNORECASE,
)


def tracked(*suffixes: str) -> list[Path]:
    """Files that git knows or would add, in the order git lists them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    files = [ROOT / line for line in listed if not suffixes or line.endswith(suffixes)]
    return [file for file in files if file.is_file()]


def run(*command: str | Path) -> bool:
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode == 0


def clang_format() -> bool:
    files = tracked(".c", ".h", ".cpp", ".cu", ".cuh")
    return not files or run("clang-format", "--dry-run", "-Werror", *files)


def forbidden_words() -> bool:
    clean = True
    for file in tracked():
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            if found := FORBIDDEN.search(line):
                print(f"{file.relative_to(ROOT)}:{number}: '{found[0]}' belongs to one machine: leave it out")
                clean = False
    return clean


CHECKS: dict[str, Callable[[], bool]] = {
    "ruff check": lambda: run("ruff", "check"),
    "ruff format": lambda: run("ruff", "format", "--check"),
    "mypy": lambda: run("mypy"),
    "clang-format": clang_format,
    "generated protobuf code": lambda: run(sys.executable, "roce_ring/control/proto/generate.py", "--check"),
    "forbidden words": forbidden_words,
}


def main() -> int:
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # this venv's tools
    failed = []
    for name, check in CHECKS.items():
        print(f"=== lint: {name} ===", flush=True)
        if not check():
            failed.append(name)
    print(f"lint: {', '.join(failed)} failed" if failed else f"lint: all {len(CHECKS)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
