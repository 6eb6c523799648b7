"""Starts markers on a fake rdma-core. Nothing here is proof about hardware: it shows which rules the program asks for,
in which order, and that it takes every one of them back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


class Lab:
    """Starts markers in a folder of their own, and ends what a test leaves running."""

    def __init__(self, command: list[str], libraries: Path, folder: Path) -> None:
        self.command, self.run_dir, self.record = command, folder / "run", folder / "record"
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(libraries),
            "RR_FAKE_RECORD": str(self.record),
            "RR_FAKE_DEVICES": "rocep1s0f0=mlx5,rocep1s0f1=mlx5,rxe0=rxe",
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        argv = [*self.command, "--run-dir", str(self.run_dir), *arguments]
        process = subprocess.Popen(
            argv, env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def ready(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = self.start(*arguments, **environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready: "), line + process.communicate(timeout=10)[1]
        return process

    def run(self, *arguments: str, **environment: str) -> tuple[int, list[str]]:
        """(exit status, what it said on standard error without the program's name)"""
        process = self.start(*arguments, **environment)
        _, errors = process.communicate(timeout=20)
        lines = errors.splitlines()
        assert all(line.startswith("roce-ring-marker: ") for line in lines), errors  # a sanitizer's report, for one
        return process.returncode, [line.removeprefix("roce-ring-marker: ") for line in lines]

    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=10)


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, f"not within 10 s: {what}"
        time.sleep(0.005)
