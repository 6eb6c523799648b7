"""Access control at the ports on the GPUs' paths: look, clear what redirects peer traffic, put it back.

Only request redirect, completion redirect and egress control are cleared; source validation and upstream forwarding
stay. The words of before are kept once a boot, so that `restore` is exact.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import RoceRingError
from ..mesh import durable
from . import config_space
from .config_space import ACS_CONTROL, REDIRECTS
from .snapshot import Function
from .tree import Tree

SCHEMA = "roce-ring/acs/v1"
BITS = (
    (0x01, "source validation"), (0x02, "translation blocking"), (0x04, "request redirect"),
    (0x08, "completion redirect"), (0x10, "upstream forwarding"), (0x20, "egress control"), (0x40, "direct translated"),
)  # fmt: skip


class AcsError(RoceRingError):
    """Nothing was changed, or what was is said."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__("acs", message, hint)


class Saved(msgspec.Struct):
    """A port as it was found: its ACS control word, and its power/control ("auto" lets it sleep, and lose the word)."""

    word: int
    power: str


class State(msgspec.Struct):
    boot_id: str
    ports: dict[str, Saved]
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class Port:
    """`word` and `offset`: None if the port could not be read; offset 0 if it has no ACS."""

    bdf: str
    kind: str
    offset: int | None
    word: int | None

    @property
    def redirects(self) -> bool | None:
        """None: unknown."""
        return None if self.offset is None else bool((self.word or 0) & REDIRECTS)


def bits(word: int) -> str:
    return ", ".join(name for bit, name in BITS if word & bit) or "nothing"


class Acs:
    """`sys`: where sysfs is. `state`: the file of what was before; gone after a boot."""

    def __init__(self, sys: Path, state: Path) -> None:
        self._devices, self._sys, self._state = sys / "bus/pci/devices", sys, state

    def ports(self, tree: Tree, gpus: list[Function]) -> list[Port]:
        """Those on the GPUs' paths, as they are now."""
        return [self._port(one) for one in tree.path_ports(gpus)]

    def plan(self, ports: list[Port], gpus: list[Function]) -> dict[str, tuple[int, int]]:
        """BDF -> (word, word without what redirects), of the ports that redirect. Raises AcsError where that must not
        be done or cannot be known."""
        if unread := [one.bdf for one in ports if one.offset is None]:
            raise AcsError(f"access control of {', '.join(unread)} cannot be read", "run as root")
        if why := self.translates([one.bdf for one in gpus]):
            raise AcsError(
                f"{why}: peer traffic past it would carry addresses that nobody translates, and corrupt memory",
                "boot with the IOMMU off, or with iommu=pt",
            )
        return {one.bdf: (one.word, one.word & ~REDIRECTS) for one in ports if one.word is not None and one.redirects}

    def translates(self, bdfs: list[str]) -> str:
        """Which of these functions sit behind an IOMMU that translates; empty if none."""
        for bdf in bdfs:
            group = self._devices / bdf / "iommu_group"
            if not group.exists():
                continue
            kind = _read(group / "type")
            if kind != "identity":
                return f"the IOMMU translates for {bdf} (domain type {kind or 'unknown'})"
        return ""

    def clear(self, changes: dict[str, tuple[int, int]]) -> None:
        """Applies a plan(). Each port's word of before is on disk before it is touched."""
        with self._locked():
            state = self._load()
            for bdf, (word, wanted) in changes.items():
                if bdf not in state.ports:
                    state.ports[bdf] = Saved(word, _read(self._devices / bdf / "power/control"))
                    self._save(state)
                self._power(bdf, "on")
                self._write(bdf, wanted)

    def restore(self) -> dict[str, int]:
        """Puts every word back that clear() found; BDF -> word."""
        with self._locked():
            state = self._load()
            for bdf, saved in state.ports.items():
                self._write(bdf, saved.word)
                self._power(bdf, saved.power)
            self._state.unlink(missing_ok=True)
            return {bdf: saved.word for bdf, saved in state.ports.items()}

    def saved(self) -> dict[str, int]:
        """What restore() would put back."""
        return {bdf: one.word for bdf, one in self._load().ports.items()}

    def _port(self, one: Function) -> Port:
        config = self._config(one.bdf)
        offset = config_space.acs_offset(config)
        word = config_space.word(config, offset + ACS_CONTROL) if offset else None
        names = {config_space.ROOT_PORT: "root port", config_space.DOWNSTREAM: "switch port"}
        return Port(one.bdf, names.get(one.port or 0, "port"), offset, word)

    def _config(self, bdf: str) -> bytes:
        try:
            return (self._devices / bdf / "config").read_bytes()
        except OSError:
            return b""

    def _write(self, bdf: str, word: int) -> None:
        offset = config_space.acs_offset(self._config(bdf))
        if not offset:
            raise AcsError(f"{bdf} shows no ACS capability any more; its word is {word:#06x} as saved", "did it reset?")
        path = self._devices / bdf / "config"
        try:
            with path.open("r+b", buffering=0) as file:
                file.seek(offset + ACS_CONTROL)
                file.write(word.to_bytes(2, "little"))
        except OSError as error:
            raise AcsError(f"cannot write {path}: {(error.strerror or str(error)).lower()}", "run as root") from None
        now = config_space.word(self._config(bdf), offset + ACS_CONTROL)
        if now != word:
            raise AcsError(f"{bdf} was told {word:#06x} and shows {now:#06x}", "the port does not let it be changed")

    def _power(self, bdf: str, value: str) -> None:
        """A port that sleeps and wakes has the kernel's word again."""
        with contextlib.suppress(OSError):  # not every port has one
            if value:
                (self._devices / bdf / "power/control").write_text(value + "\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One at a time, or two would take each other's word for the first."""
        try:
            self._state.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = os.open(self._state.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AcsError(
                f"cannot keep state in {self._state.parent}: {(error.strerror or '').lower()}", "run as root"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _load(self) -> State:
        now = _read(Path("/proc/sys/kernel/random/boot_id"))
        try:
            state = msgspec.json.decode(self._state.read_bytes(), type=State)
        except FileNotFoundError:
            return State(now, {})
        except (OSError, msgspec.DecodeError) as error:
            raise AcsError(
                f"{self._state} says which words to put back and cannot be read: {error}",
                "nothing was changed; remove it",
            ) from None
        return state if state.boot_id == now else State(now, {})

    def _save(self, state: State) -> None:
        try:
            durable.replace(self._state, msgspec.json.encode(state))
        except OSError as error:
            raise AcsError(
                f"cannot keep state in {self._state.parent}: {(error.strerror or '').lower()}", "make room"
            ) from None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
