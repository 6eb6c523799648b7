"""A test that passes but logged a warning or worse has found something: it fails, unless the warning is its subject."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest


class _Recorder(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _recording() -> Iterator[list[logging.LogRecord]]:
    recorder = _Recorder()
    logging.getLogger().addHandler(recorder)
    try:
        yield recorder.records
    finally:
        logging.getLogger().removeHandler(recorder)


# What a machine with more tests than cores may make any test log; never a finding.
_BUSY_MACHINE = r"^rank \d+ waits at .* for "


def _patterns(item: pytest.Item) -> list[str]:
    return [pattern for mark in item.iter_markers("expected_warnings") for pattern in mark.args]


def _fail_on_unexpected(item: pytest.Item, records: list[logging.LogRecord]) -> None:
    patterns = _patterns(item)
    fine = [*patterns, _BUSY_MACHINE]
    unexpected = [r for r in records if not any(re.search(pattern, r.getMessage()) for pattern in fine)]
    if not unexpected:
        return
    lines = [f"  {r.levelname} {r.name} ({r.filename}:{r.lineno}): {r.getMessage()}" for r in unexpected]
    pytest.fail(
        "the test passed but logged what it did not expect:\n"
        + "\n".join(lines)
        + "\nfix the cause, or, if the warning is what the test is about, mark it:"
        + f"\n  @pytest.mark.expected_warnings({re.escape(unexpected[0].getMessage()[:40])!r})",
        pytrace=False,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with _recording() as records:
        result = yield
    _fail_on_unexpected(item, records)
    missing = [p for p in _patterns(item) if not any(re.search(p, r.getMessage()) for r in records)]
    if missing:
        pytest.fail(f"expected a log record of level WARNING or above matching {missing}, none came", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _recording() as records:
        result = yield
    _fail_on_unexpected(item, records)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _recording() as records:
        result = yield
    _fail_on_unexpected(item, records)
    return result


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The program in this process: typed("up", "plan.json") -> (exit status, stdout, stderr)."""
    from roce_ring.cli.main import main

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["roce-ring", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out = capsys.readouterr()
        assert "Traceback" not in out.err
        return int(caught.value.code or 0), out.out, out.err

    return call
