"""Write a plan directory: all of it or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import yaml

from .commands import down, up
from .facts import Facts, Node, PortEntry
from .finding import Finding
from .loading import FACTS_FILE, PLAN_FILE
from .model import Plan
from .picture import svg
from .report import summary
from .text import CONSUMERS, variables

# Values hold ';' and are not quoted, because docker would keep the quotes. A shell that sources the file cuts them.
_ENV_HEAD = "# for docker --env-file and systemd EnvironmentFile=; in a shell: env $(grep -v '^#' THIS_FILE) COMMAND"


class CannotWrite(Exception):
    """The directory cannot be written; the message says why and what to do."""


def write(directory: Path, plan: Plan, facts: Facts, findings: Sequence[Finding]) -> None:
    """Replace ``directory`` by the plan's files, or raise :class:`CannotWrite` and leave everything as it was."""
    directory = directory.absolute()
    check(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        at = error.filename if error.filename in map(str, (directory, *directory.parents)) else directory.parent
        raise CannotWrite(f"{at} cannot be written ({error.strerror}); name a directory you may write") from error
    try:
        fresh.chmod(0o755)
        _fill(fresh, plan, facts, findings)
        _exchange(fresh, directory)
    except OSError as error:
        raise CannotWrite(f"{directory} cannot be written ({error.strerror}); nothing was changed") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_file(path: Path, content: bytes) -> None:
    """Write one file, or raise :class:`CannotWrite`."""
    with _in_words(path):
        path.write_bytes(content)


def try_file(path: Path) -> None:
    """Raise :class:`CannotWrite` if the file cannot be opened for writing. Leaves what is there as it is."""
    with _in_words(path):
        fresh = not (path.exists() or path.is_symlink())
        path.open("ab").close()
        if fresh:
            path.unlink()


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written ({error.strerror or error}); name another file") from error


def check(directory: Path) -> None:
    """Raise :class:`CannotWrite` for what is there and is no plan's directory."""
    try:
        _refuse_to_lose(directory)
    except OSError as error:
        raise CannotWrite(
            f"{directory} cannot be written ({error.strerror}); name a directory you may write"
        ) from error


def _refuse_to_lose(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise CannotWrite(f"{directory} is a file; name a directory for --out")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / PLAN_FILE).is_file():
        raise CannotWrite(
            f"{directory} holds files that are not a plan's and would be lost; name a new or empty directory for --out"
        )


def _fill(root: Path, plan: Plan, facts: Facts, findings: Sequence[Finding]) -> None:
    files: dict[str, str] = {
        PLAN_FILE: _json(plan),
        "plan.yaml": yaml.safe_dump(msgspec.to_builtins(plan), sort_keys=False, width=120),
        "ring.svg": svg(plan),
        "summary.txt": _lines(summary(plan, findings)),
        FACTS_FILE: _json({"nodes": [_entry(node) for node in facts]}),
    }
    for node in plan.nodes:
        files[f"nodes/{node.host}/node.json"] = _json(node)
        files[f"nodes/{node.host}/up.txt"] = _lines(map(str, up(node)))
        files[f"nodes/{node.host}/down.txt"] = _lines(map(str, down(node)))
        for consumer in CONSUMERS:
            values = variables(plan, consumer, node.rank)
            if values:
                files[f"nodes/{node.host}/{consumer}.env"] = _lines(
                    [_ENV_HEAD, *(f"{name}={value}" for name, value in values.items())]
                )
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _entry(node: Node) -> dict[str, object]:
    """A node in the form that facts files have, so that the same plan can be made again."""
    fields = PortEntry.__struct_fields__
    ports = [{name: value for name in fields if (value := getattr(port, name)) is not None} for port in node.ports]
    return {"host": node.host, "ports": ports, "problems": node.problems}


def _exchange(fresh: Path, directory: Path) -> None:
    """Put ``fresh`` in the place of ``directory``, which steps aside first (rename cannot replace a full one)."""
    aside = fresh.with_name(fresh.name + ".old")
    if directory.exists():
        directory.rename(aside)
    try:
        fresh.rename(directory)
    except OSError:
        if aside.exists():
            aside.rename(directory)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
