"""The wire: proto style, model and messages side by side, and generated code that engines can live with."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
from google.protobuf.descriptor import FileDescriptor

from roce_ring.control import model
from roce_ring.control.proto.roce_ring.v1 import rank_service_pb2, rendezvous_service_pb2

PROTO = Path(model.__file__).parent / "proto"
FILES = [rank_service_pb2.DESCRIPTOR, rendezvous_service_pb2.DESCRIPTOR]


@pytest.mark.parametrize("file", FILES, ids=lambda file: Path(file.name).stem)
def test_protos_follow_the_buf_standard_rules(file: FileDescriptor) -> None:
    """One service a file named ...Service, requests and responses of their own, enums with their prefix and a zero."""
    assert file.package == "roce_ring.v1"
    (service,) = file.services_by_name.values()
    assert service.name.endswith("Service")
    used = []
    for method in service.methods:
        assert (method.input_type.name, method.output_type.name) == (f"{method.name}Request", f"{method.name}Response")
        used += [method.input_type.name, method.output_type.name]
    assert len(used) == len(set(used))
    for enum in file.enum_types_by_name.values():
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
        assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"
        assert all(value.name.startswith(prefix + "_") for value in enum.values)


@pytest.mark.parametrize("file", FILES, ids=lambda file: Path(file.name).stem)
def test_numbers_of_time_and_size_carry_their_unit(file: FileDescriptor) -> None:
    for message in file.message_types_by_name.values():
        for field in message.fields:
            if re.search(r"(^|_)(timeout|nap|gap|late|started|capacity|size|latency)(_|$)(?!reports)", field.name):
                assert re.search(r"_(s|ms|us|bytes)$", field.name), f"{message.name}.{field.name}"


@pytest.mark.parametrize(
    "cls",
    [
        model.RankInfo, model.PeerInfo, model.RankState, model.RankStats, model.PeerStats, model.PathStats,
        model.MemoryPart, model.IdlePolicy, model.RankEvent,
    ],
)  # fmt: skip
def test_every_message_has_exactly_the_fields_of_its_dataclass(cls: type) -> None:
    """A metric added on one side only would be lost in silence."""
    message = rank_service_pb2.DESCRIPTOR.message_types_by_name[cls.__name__]
    assert [field.name for field in message.fields] == [field.name for field in fields(cls)]


@pytest.mark.parametrize("cls", [model.SessionState, model.EventKind])
def test_every_enum_has_exactly_the_values_of_its_python_enum(cls: type) -> None:
    enum = rank_service_pb2.DESCRIPTOR.enum_types_by_name[cls.__name__]
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper() + "_"
    assert [value.name for value in enum.values][1:] == [prefix + item.name for item in cls]  # type: ignore[attr-defined]


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools generates the code; it is not installed")
def test_generated_code_is_current() -> None:
    check = subprocess.run(
        [sys.executable, str(PROTO / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_generated_code_runs_on_what_the_engines_bring() -> None:
    """The code refuses older libraries than its generator's, and engines pin theirs: sglang 0.5.23 needs
    grpcio >= 1.81.1 and protobuf >= 6.33.5; vllm 0.33.0 takes protobuf from 6.33.5 on (below that only 5.29.6 to 5.x,
    which its own resolver leaves). So a floor above these would break an image that works today."""
    for file in sorted((PROTO / "roce_ring" / "v1").glob("*_pb2*.py")):
        text = file.read_text()
        if file.name.endswith("_grpc.py"):
            (floor,) = re.findall(r"^GRPC_GENERATED_VERSION = '([\d.]+)'", text, re.MULTILINE)
            assert version(floor) <= (1, 81, 1), file.name
        else:
            (floor,) = re.findall(r"^# Protobuf Python Version: ([\d.]+)$", text, re.MULTILINE)
            assert version(floor) <= (6, 33, 5), file.name


def test_the_package_asks_for_no_less_than_the_generated_code_needs() -> None:
    """Else pip installs a grpcio that the import then refuses."""
    dependencies = (PROTO.parents[2] / "pyproject.toml").read_text()
    for name, floor in (("grpcio", "1.78"), ("protobuf", "6.31.1")):
        assert f'"{name}>={floor},' in dependencies
