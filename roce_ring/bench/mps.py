"""A private MPS daemon: processes that share a GPU without it take turns, and a collective takes milliseconds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import SetupError
from .process import interruptible

_CONTROL = "nvidia-cuda-mps-control"
_WAIT_S = 20.0


@contextlib.contextmanager
def mps() -> Iterator[None]:
    """For the processes started inside; gone afterwards, also after an error, Ctrl-C or SIGTERM. On the main thread.
    Raises SetupError."""
    with interruptible(), tempfile.TemporaryDirectory(prefix="roce-ring-mps-") as folder:
        names = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        before = {name: os.environ.get(name) for name in names}
        for path in names.values():
            Path(path).mkdir()
        os.environ.update(names)
        try:
            _control("-d")
            yield
        finally:
            with contextlib.suppress(SetupError):
                _control(said="quit\n")
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _control(*arguments: str, said: str = "") -> None:
    try:
        subprocess.run([_CONTROL, *arguments], input=said, text=True, check=True, capture_output=True, timeout=_WAIT_S)
    except OSError as error:
        raise SetupError(
            f"{_CONTROL} does not start: {(error.strerror or str(error)).lower()}",
            "it comes with the NVIDIA driver; or take --share processes, where every operation takes milliseconds",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{_CONTROL} did not answer within {_WAIT_S:.0f} s", "look for another MPS daemon") from error
    except subprocess.CalledProcessError as error:
        raise SetupError(
            f"{_CONTROL} failed: {(error.stderr or error.stdout).strip()}", "look at nvidia-smi"
        ) from error
