"""PCI fabrics of several hosts, made from what is published of them: addresses, links and widths, not dumps."""

from __future__ import annotations

from roce_ring.fabric.snapshot import SCHEMA, Function, Snapshot

ROOT_PORT, UPSTREAM, DOWNSTREAM, ENDPOINT = 4, 5, 6, 0
NVIDIA, MELLANOX, BRIDGE_VENDOR = "10de", "15b3", "1000"


class Builder:
    """Hands out bus numbers below one host bridge after the other, as firmware does."""

    def __init__(self, host: str, **facts: object) -> None:
        self._host, self._facts = host, facts
        self._functions: list[Function] = []
        self._bus: dict[str, int] = {}

    def add(self, bdf: str, root: str, chain: tuple[str, ...], kind: int, port: int, **more: object) -> tuple[str, ...]:
        """The chain of what is below it."""
        fields = {"vendor": BRIDGE_VENDOR, "device": "c030", "speed": "32.0 GT/s PCIe", "width": 16, "max_width": 16}
        fields |= {"max_speed": "32.0 GT/s PCIe", "acs_control": -1} | more
        self._functions.append(Function(bdf=bdf, root=root, chain=chain, kind=kind, port=port, **fields))  # type: ignore[arg-type]
        return (*chain, bdf)

    def _next(self, root: str) -> str:
        bus = self._bus[root] = self._bus.get(root, int(root[-2:], 16)) + 1
        return f"{root[:-2]}{bus:02x}"

    def root_port(self, root: str, device: int = 1, function: int = 1, **more: object) -> tuple[str, ...]:
        return self.add(f"{root}:{device:02x}.{function}", root, (), 0x0604, ROOT_PORT, **more)

    def switch(
        self, root: str, above: tuple[str, ...], ports: int, acs: int = -1, **more: object
    ) -> list[tuple[str, ...]]:
        """The chains below its downstream ports."""
        up = self.add(f"{self._next(root)}:00.0", root, above, 0x0604, UPSTREAM, **more)
        bus = self._next(root)
        return [
            self.add(f"{bus}:{slot:02x}.0", root, up, 0x0604, DOWNSTREAM, acs_control=acs, **more)
            for slot in range(ports)
        ]

    def gpu(self, root: str, above: tuple[str, ...], **more: object) -> None:
        fields = {"vendor": NVIDIA, "device": "2bb1"} | more
        self.add(f"{self._next(root)}:00.0", root, above, 0x0302, ENDPOINT, **fields)

    def nic(self, root: str, above: tuple[str, ...], *functions: tuple[str, ...], **more: object) -> None:
        bus = self._next(root)
        for number, names in enumerate(functions):
            fields = {"vendor": MELLANOX, "device": "1021", "names": names} | more
            self.add(f"{bus}:00.{number}", root, above, 0x0200, ENDPOINT, **fields)

    def done(self) -> Snapshot:
        functions = tuple(sorted(self._functions, key=lambda one: one.bdf))
        return Snapshot(SCHEMA, self._host, functions, **self._facts)  # type: ignore[arg-type]


def frank2() -> Snapshot:
    """EPYC 9575F, one socket, NPS1, IOMMU off; 17 RTX PRO 6000 behind Switchtec boards; two partitions and two host
    bridges a quadrant; GPU 16 on four lanes. The quadrants are what its owner measured."""
    roots = ["00", "20", "40", "60", "80", "a0", "c0", "e0"]
    made = Builder(
        "frank2", sockets=1, numa_nodes=1, quadrants={f"0000:{root}": str(at // 2) for at, root in enumerate(roots)}
    )
    for at, name in enumerate(roots):
        root = f"0000:{name}"
        ports = made.switch(root, made.root_port(root, numa=0), 3 if name == "e0" else 2, numa=0)
        for slot, port in enumerate(ports):
            made.gpu(root, port, numa=0, width=4 if (at, slot) == (7, 2) else 16)
    return made.done()


def plx8749() -> Snapshot:
    """A workstation: one PEX 8749 with four V100, its downstream ports redirecting (0x001d)."""
    made = Builder("plx8749")
    gen3 = {"speed": "8.0 GT/s PCIe", "max_speed": "8.0 GT/s PCIe"}
    for port in made.switch("0000:00", made.root_port("0000:00", **gen3), 4, acs=0x001D, **gen3):
        made.gpu("0000:00", port, device="1db4", **gen3)
    return made.done()


def two_sockets() -> Snapshot:
    """Two EPYC 9575F, four switches of two GPUs, two a socket (10, 70 on node 0; 80, f0 on node 1)."""
    made = Builder("two-sockets", sockets=2, numa_nodes=2)
    for name, numa in (("10", 0), ("70", 0), ("80", 1), ("f0", 1)):
        root = f"0000:{name}"
        for port in made.switch(root, made.root_port(root, numa=numa), 2, numa=numa):
            made.gpu(root, port, numa=numa)
    return made.done()


def spark() -> Snapshot:
    """A DGX Spark: the GPU has a host bridge of its own; the ConnectX-7 shows two functions in each of two domains."""
    made = Builder("spark1")
    for domain, prefix in (("0000", "p1"), ("0002", "P2p1")):
        root = f"{domain}:00"
        ports = [(f"en{prefix}s0f{port}np{port}", f"roce{prefix}s0f{port}") for port in (0, 1)]
        made.nic(root, made.root_port(root, 0, 0, width=4, max_width=4), *ports, width=4, max_width=4)
    root = "000f:00"
    made.gpu(root, made.root_port(root, 0, 0), device="2e12", width=1, max_width=1)
    return made.done()


def laptop() -> Snapshot:
    """One GPU for the screen, no switch, nothing to reduce over; configuration space not readable."""
    made = Builder("laptop")
    made.gpu("0000:00", made.root_port("0000:00", acs_control=None), width=8)
    made.nic("0000:00", made.root_port("0000:00", 6, 0, acs_control=None), ("wlp2s0",), vendor="8086")
    return made.done()


HOSTS = {one.__name__: one for one in (frank2, plx8749, two_sockets, spark, laptop)}
