"""One Soft-RoCE guest: boots the kernel, runs commands in its network name spaces, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

TOOLS = (  # what it runs, from the host's files: (program or file, Debian package that brings it)
    ("setpriv", "util-linux"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("rdma", "iproute2"),
    ("ps", "procps"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ib_write_lat", "perftest"),
    ("/usr/lib/python3/dist-packages/pyverbs/__init__.py", "python3-pyverbs"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("cc", "gcc"),
)
INIT = Path(__file__).with_name("guest_init.sh")
BOOT_S = 30.0
TIMED_OUT = 124  # what timeout(1) says
REPORT_LINES = 30
REPORT_COMMANDS = 10


def _core() -> int:
    """Which core a guest is kept to: each worker of pytest-xdist has its own; otherwise by chance."""
    cores = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...
    return cores[int(worker[2:]) % len(cores)] if worker else random.choice(cores)


class GuestError(Exception):
    """The guest did not boot, died, or a command that had to work failed."""


@dataclass(frozen=True)
class Result:
    """What a command did: its exit status and everything it printed (stdout and stderr together)."""

    command: str
    status: int
    output: str

    @property
    def timed_out(self) -> bool:
        return self.status == TIMED_OUT

    def check(self) -> str:
        """The output; raises GuestError unless the exit status is 0."""
        if self.status:
            why = "took too long" if self.timed_out else f"ended with {self.status}"
            raise GuestError(f"'{self.command}' {why}:\n{self.output}")
        return self.output


class Job:
    """A command that is running in the guest."""

    def __init__(self, guest: Guest, number: int, command: str, limit_s: float) -> None:
        self._guest, self._number, self._command, self._limit_s = guest, number, command, limit_s

    def wait(self) -> Result:
        """Its result, at most its time limit after its start. Raises GuestError if the guest died."""
        return self._guest.result(self._number, self._command, self._limit_s)

    @property
    def output(self) -> str:
        """What it has printed so far. Raises GuestError if the guest died."""
        return self._guest.run(f"cat /ring/{self._number}.out").output  # its pages reach the host's file late

    def ended(self) -> bool:
        return self._guest.is_done(self._number)

    def until(self, pattern: str, limit_s: float = 10) -> str:
        """Wait until its output has a match of the extended regular expression; the first line that has one. Raises
        GuestError if it ends or the time is up first."""
        out, over = f"/ring/{self._number}.out", f"/ring/{self._number}.rc"
        look = f"grep -m 1 -aE -e {shlex.quote(pattern)} {out}"
        found = self._guest.run(f"until {look} || [ -e {over} ]; do sleep 0.02; done 2> /dev/null", limit_s=limit_s)
        if found.timed_out or not found.output:
            why = f"did not come within {limit_s:g} s" if found.timed_out else "did not come before it ended"
            raise GuestError(f"{pattern!r} {why} from '{self._command}'; it printed:\n{self.output}")
        return found.output.rstrip("\n")

    def signal(self, name: str) -> None:
        """Send TERM, KILL, STOP, CONT, ... to the process that the command is (a shell's children do not get it: start
        a program as the command's last, so that it takes the shell's place). Raises GuestError if it has ended."""
        pid = f"/ring/{self._number}.pid"
        started = f"until [ -s {pid} ]; do sleep 0.02; done 2> /dev/null"
        self._guest.run(f"{started}; kill -{name} $(cat {pid})").check()


class Guest:
    """A context manager. ``kernel``: path of the kernel; ``share`` is a host directory that the guest sees as /ring."""

    def __init__(self, kernel: Path, cpus: int = 1, memory_mib: int = 1024) -> None:
        if os.geteuid() != 0:
            raise GuestError("the Soft-RoCE guest mounts this machine's files as root; run as root")
        self._kernel, self._cpus, self._memory_mib = kernel, cpus, memory_mib
        self.share = Path(tempfile.mkdtemp(prefix="roce-ring-soft."))
        self._done: set[int] = set()
        self._changed = threading.Condition()
        self._commands: dict[int, str] = {}
        self._last = 0
        self._gone = False

    def __enter__(self) -> Guest:
        try:
            self._boot()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _boot(self) -> None:
        shutil.copy("/proc/cpuinfo", self.share / "cpuinfo")
        self._line, theirs = socket.socketpair()
        command = [
            # the guest dies with us; one core, if it has one processor: waking another core doubles every time
            *("setpriv", "--pdeathsig", "KILL"),
            *(("taskset", "-c", str(_core())) if self._cpus == 1 else ()),
            *(str(self._kernel), f"mem={self._memory_mib}M", f"ncpus={self._cpus}", "seccomp=on"),
            *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={INIT}"),
            *("con=null", "con0=null,fd:1", "ssl=null", f"ssl0=fd:{theirs.fileno()}", "console=tty0", "panic=-1"),
            *(f"uml_dir={self.share}", "umid=uml", f"ring_dir={self.share}"),
            "ib_core.netns_mode=0",  # a node sees its own RDMA devices only
        ]
        with (self.share / "console").open("wb") as console:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "TMPDIR": "/dev/shm"},  # where its memory lies
            )
        theirs.close()
        self._reader = threading.Thread(target=self._listen, name="soft-roce guest", daemon=True)
        self._reader.start()
        with self._changed:
            self._changed.wait_for(lambda: 0 in self._done or self._gone, BOOT_S)
            if 0 not in self._done:
                raise GuestError(f"the guest did not boot; its console says:\n{self.console()}")

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionError), self._line.makefile("r") as lines:
            for line in lines:
                if line.strip().isdecimal():
                    with self._changed:
                        self._done.add(int(line))
                        self._changed.notify_all()
        with self._changed:  # end of file, or a reset if it left something unread
            self._gone = True
            self._changed.notify_all()

    def spawn(self, command: str, node: str = "", limit_s: float = 30) -> Job:
        """Start shell ``command`` in the name space ``node`` (empty: the first one); ends it after ``limit_s``."""
        with self._changed:
            self._last += 1
            number = self._last
        (self.share / f"{number}.sh").write_text(command + "\n")
        said = self._commands[number] = f"{node}: {command}" if node else command
        with contextlib.suppress(ConnectionError):  # a dead guest is result()'s to report
            self._line.sendall(f"{number} {limit_s:g} {node}\n".encode())
        return Job(self, number, said, limit_s)

    def run(self, command: str, node: str = "", limit_s: float = 30) -> Result:
        """The same, and wait for it."""
        return self.spawn(command, node, limit_s).wait()

    def is_done(self, number: int) -> bool:
        with self._changed:
            return number in self._done

    def result(self, number: int, command: str, limit_s: float) -> Result:
        with self._changed:
            self._changed.wait_for(lambda: number in self._done or self._gone, limit_s + 10)
            if number not in self._done:
                state = "died" if self._gone else "hangs"
                raise GuestError(f"the guest {state} in '{command}'; its console says:\n{self.console()}")
        output = (self.share / f"{number}.out").read_text(errors="replace")
        return Result(command, int((self.share / f"{number}.rc").read_text()), output)

    def console(self) -> str:
        """The end of the kernel's log."""
        return "\n".join((self.share / "console").read_text(errors="replace").splitlines()[-REPORT_LINES:])

    def report(self) -> str:
        """For a failed test: what still runs, the last commands, and the end of the kernel's log."""
        if not self._gone:
            self.run("sync /ring/*.out", limit_s=5)  # what has been printed so far reaches the host
        numbers = list(self._commands)
        chosen = [number for number in numbers if number in numbers[-REPORT_COMMANDS:] or number not in self._done]
        return "\n".join([*map(self._report_of, chosen), "--- console ---", self.console()])

    def _report_of(self, number: int) -> str:
        file = self.share / f"{number}.out"
        printed = file.read_text(errors="replace").splitlines()[-REPORT_LINES:] if file.exists() else []
        status = (self.share / f"{number}.rc").read_text().strip() if number in self._done else "still running"
        return "\n".join([f"$ {self._commands[number]}", *printed, f"[{status}]"])

    def stop(self) -> None:
        """End every process of the guest and remove its files. Nothing of it is worth an orderly shutdown."""
        if hasattr(self, "_process"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join(5)
            self._line.close()
        shutil.rmtree(self.share, ignore_errors=True)
