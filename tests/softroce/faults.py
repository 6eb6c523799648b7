"""What goes wrong on a ring, on demand."""

from __future__ import annotations

import json

from mesh.model import Hca
from tests.softroce.guest import Job
from tests.softroce.ring import MANAGEMENT, MANAGEMENT_UP, NO_FAULT, Node


def unplug(node: Node, hca: Hca) -> None:
    """Pull the cable out of a port: no carrier at both ends. Routes and neighbours stay, queue pairs retry."""
    node.run(f"ip link set {hca.netdev} carrier off").check()


def plug(node: Node, hca: Hca) -> None:
    """The cable is back."""
    node.run(f"ip link set {hca.netdev} carrier on").check()


def unplug_for(node: Node, hca: Hca, seconds: float) -> Job:
    """Both in one, in the background; wait() for the job to be sure that the cable is back."""
    change = f"ip link set {hca.netdev} carrier"
    return node.spawn(f"{change} off; sleep {seconds:g}; {change} on", seconds + 10)


def link_down(node: Node, hca: Hca) -> None:
    """An administrator's 'down' at this end; the far end loses its carrier. Planned routes and neighbours go."""
    node.run(f"ip link set {hca.netdev} down").check()


def link_up(node: Node, hca: Hca) -> None:
    """The link comes back with its address; planned routes and neighbours do not, as on a real host."""
    node.run(f"ip link set {hca.netdev} up").check()


def impair(node: Node, hca: Hca, how: str) -> None:
    """Treat what leaves this port as netem says: 'loss 5%', 'delay 5ms', 'duplicate 10%', 'loss 100%' for silence."""
    node.run(f"tc qdisc change dev {hca.netdev} root {NO_FAULT} {how}").check()


def heal(node: Node, hca: Hca) -> None:
    """No impairment any more."""
    # 'change' keeps what it is not told: each of them has to be taken back by name
    node.run(f"tc qdisc change dev {hca.netdev} root {NO_FAULT} loss 0% delay 0ms duplicate 0%").check()


def move_gid(node: Node, hca: Hca) -> None:
    """A flap after which the port's address sits at another GID index: the old slot was taken in between."""
    passing = f"169.254.99.{hca.index + 1}/32"
    node.batch(
        "ip",
        [
            f"link set {hca.netdev} down",
            f"address del {hca.address} dev {hca.netdev}",
            f"address add {passing} dev {hca.netdev}",
            f"address add {hca.address} dev {hca.netdev}",
            f"address del {passing} dev {hca.netdev}",
            f"link set {hca.netdev} up",
        ],
    )


def kill(node: Node) -> None:
    """A dead host: its links go dark, its processes end without a word. The name space stays, or the far ends of its
    cables would vanish with it."""
    dark = "".join(f"link set {port} down\n" for port in (MANAGEMENT, *(hca.netdev for hca in node.plan.hcas)))
    # from outside: inside, the killer would be among the killed
    node.outside(f"ip -n {node.name} -b - <<'END'\n{dark}END\nip netns pids {node.name} | xargs -r kill -KILL")


def reboot(node: Node) -> None:
    """Dead, then back as after a boot: ports up with MTU and address; nothing planned is there, nothing runs."""
    kill(node)
    fresh = "".join(
        f"tc qdisc del dev {hca.netdev} clsact 2> /dev/null\n"  # fails if there is none
        f"tc qdisc replace dev {hca.netdev} root {NO_FAULT} || exit\n"
        for hca in node.plan.hcas
    )
    node.run(fresh).check()
    node.batch("ip", [*MANAGEMENT_UP, *(f"link set {hca.netdev} up mtu {hca.mtu}" for hca in node.plan.hcas)])


def relay_queue(node: Node, hca: Hca, mbit: int, limit_bytes: int) -> None:
    """Frames that this node passes on out of a port, and only those, leave at ``mbit`` Mbit/s and wait in a queue of
    ``limit_bytes``; what comes while it is full is dropped, as by a hairpin queue. The node's own frames go first."""
    node.batch(
        "tc",
        [
            # every frame is of band 1 (the second) unless the filter says band 0
            f"qdisc replace dev {hca.netdev} root handle 1: prio bands 2 priomap {' '.join(['1'] * 16)}",
            f"qdisc add dev {hca.netdev} parent 1:1 {NO_FAULT}",
            f"qdisc add dev {hca.netdev} parent 1:2 tbf rate {mbit}mbit burst {4 * hca.mtu} limit {limit_bytes}",
            f"filter add dev {hca.netdev} parent 1: protocol all flower src_mac {hca.mac} classid 1:1",
        ],
    )


def no_relay_queue(node: Node, hca: Hca) -> None:
    """Take it back."""
    node.run(f"tc qdisc replace dev {hca.netdev} root {NO_FAULT}").check()


def relay_drops(node: Node, hca: Hca) -> int:
    """Frames that the relay queue of a port has dropped."""
    shown = json.loads(node.run(f"tc -j -s qdisc show dev {hca.netdev}").check())
    [queue] = [qdisc for qdisc in shown if qdisc["kind"] == "tbf"]
    return int(queue["drops"])
