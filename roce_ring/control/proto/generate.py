"""Regenerate the protobuf and gRPC code that is committed beside the .proto files. Takes no arguments.

`--check` writes nothing and exits 1 if the committed code is not what this generator makes. The generator's version is
pinned because it decides the oldest grpcio and protobuf the code runs on, and engines pin theirs: 1.78.0 needs
grpcio 1.78.0 and protobuf 6.31.1, which is below what sglang 0.5.23 and vllm 0.33.0 bring.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

GENERATOR = "1.78.0"
ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "roce_ring" / "v1"


def generate(into: Path) -> dict[str, str]:
    """Generated file name -> text, for every .proto of the package."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    include = Path(protoc.__file__).parent / "_proto"
    protos = [str(path.relative_to(ROOT)) for path in sorted(PACKAGE.glob("*.proto"))]
    flags = [f"--proto_path={ROOT}", f"--proto_path={include}"]
    outputs = [f"--python_out={into}", f"--pyi_out={into}", f"--grpc_python_out={into}"]
    if protoc.main(["protoc", *flags, *outputs, *protos]) != 0:
        raise SystemExit("protoc failed; its message is above")
    made = sorted((into / "roce_ring" / "v1").iterdir())
    return {path.name: relative_imports(path.read_text()) for path in made}


def relative_imports(text: str) -> str:
    """Generated code imports itself as `roce_ring.v1`, which is the proto package and not where the files lie."""
    return re.sub(r"^from roce_ring\.v1 import", "from . import", text, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the committed code is not current"
    )
    check = parser.parse_args().check
    if version("grpcio-tools") != GENERATOR:
        print(f"grpcio-tools is {version('grpcio-tools')}, expected {GENERATOR}: pip install grpcio-tools=={GENERATOR}")
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        made = generate(Path(scratch))
    stale = [
        name for name, text in made.items() if not (PACKAGE / name).is_file() or (PACKAGE / name).read_text() != text
    ]
    if check:
        for name in stale:
            print(f"{PACKAGE / name} is not current: run python {Path(__file__).name}")
        return 1 if stale else 0
    for name in stale:
        (PACKAGE / name).write_text(made[name])
        print(f"wrote {PACKAGE / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
