"""The marker program with the real rdma-core and a real kernel: as far as it goes on devices that are not ConnectX."""

from __future__ import annotations

from mesh.marker import marker_program
from tests.softroce.ring import Ring

RING = (2, 1)


def marker(ring: Ring, device: str) -> tuple[int, str]:
    command = (
        f"{marker_program()} --device {device} --run-dir /ring/markers --mark sport=65535,ethertype=0x88b5 --check"
    )
    result = ring.nodes[0].run(command)
    return result.status, result.output


def test_soft_device_is_opened_by_no_marker(ring: Ring) -> None:
    """The plan of a soft ring has markers too; who starts one by hand reads where the mark is made there."""
    status, output = marker(ring, "rocep1s0f0")
    assert status == 1
    assert output.startswith("roce-ring-marker: rocep1s0f0 is not a ConnectX device (its driver is not mlx5), so")


def test_present_devices_are_named(ring: Ring) -> None:
    status, output = marker(ring, "rocep9s0f0")
    assert status == 1
    assert output.startswith("roce-ring-marker: there is no RDMA device rocep9s0f0 here; the devices are: rocep1s0f0")
