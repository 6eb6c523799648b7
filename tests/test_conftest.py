"""The rule 'an unexpected warning fails a passing test' must itself be able to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CASES = """
import logging
import pytest

log = logging.getLogger("roce_ring.sample")

def test_quiet():
    log.info("fine")

def test_loud():
    log.warning("peer 2 is late")

@pytest.mark.expected_warnings("peer . is late")
def test_announced():
    log.warning("peer 2 is late")

@pytest.mark.expected_warnings("peer . is late")
def test_promised_but_silent():
    pass

@pytest.fixture
def loud_teardown():
    yield
    log.error("socket left behind")

def test_teardown(loud_teardown):
    pass
"""


def test_unexpected_warnings_fail_and_missing_ones_too(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = expected_warnings")
    pytester.makepyfile(CASES)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=2, errors=1)
    result.stdout.fnmatch_lines(["*test_loud*", "*WARNING roce_ring.sample*peer 2 is late*"])
    result.stdout.fnmatch_lines(["*expected a log record*peer . is late*"])
