"""What goes wrong on a ring, on demand."""

from __future__ import annotations

from mesh.model import Hca
from tests.softroce.ring import NO_FAULT, Node


def link_down(node: Node, hca: Hca) -> None:
    """Take this end of a cable down; the far end loses its carrier. Planned routes and neighbours of the port go."""
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
    """A dead host: its processes end without a word, its links go dark. The name space stays, or the far ends of its
    cables would vanish with it."""
    dark = "".join(f"link set {hca.netdev} down\n" for hca in node.plan.hcas)
    # from outside: inside, the killer would be among the killed
    node.outside(f"ip netns pids {node.name} | xargs -r kill -KILL; ip -n {node.name} -b - <<'END'\n{dark}END")
