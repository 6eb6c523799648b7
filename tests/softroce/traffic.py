"""RDMA between two ports of a ring with the usual programs."""

from __future__ import annotations

import itertools

from mesh.model import Hca
from tests.softroce.guest import Job, Result
from tests.softroce.ring import Node

End = tuple[Node, Hca]
_ports = itertools.count(18515)


def write(a: End, b: End, *, count: int = 20, size: int = 4096, limit_s: float = 15) -> Result:
    """RDMA writes of ``size`` bytes in turn from both ends (ib_write_lat); the result of end ``a``."""
    return start("ib_write_lat -F", "-x", a, b, f"-n {count} -s {size}", limit_s).wait()


def pingpong(a: End, b: End, *, count: int = 20, size: int = 4096, limit_s: float = 15) -> Result:
    """Messages to and fro, both ends asleep while they wait (ibv_rc_pingpong); the result of end ``a``."""
    return start("ibv_rc_pingpong -e -m 4096", "-g", a, b, f"-n {count} -s {size}", limit_s).wait()


def start(program: str, gid_option: str, a: End, b: End, options: str, limit_s: float, pinned: bool = False) -> Job:
    """The program at both ends, which meet over the management network; the job of end ``a``. ``pinned``: to the
    guest's processors 0 and 1."""
    port = next(_ports)

    def command(end: End) -> str:
        node, hca = end
        where = f"taskset -c {int(end is b)} " if pinned else ""
        return where + f"{program} -p {port} -d {hca.rdma} {gid_option} {node.gid_index(hca)} {options}"

    b[0].spawn(command(b), limit_s)
    b[0].run(f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.02; done", limit_s).check()
    return a[0].spawn(f"{command(a)} {b[0].management_address}", limit_s)
