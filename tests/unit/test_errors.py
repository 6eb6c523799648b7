"""Every way a session can end has a name, a hint, and a place in the troubleshooting page."""

from __future__ import annotations

import re
from pathlib import Path

from roce_ring.native import native

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"


def test_every_reason_is_in_the_troubleshooting_page_and_no_other() -> None:
    """An operator looks up `error.code`; a code without an entry, or an entry without a code, is a dead end."""
    part = re.search(r"<!-- session -->(.*?)<!-- /session -->", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert part is not None
    headings = re.findall(r"^### `([a-z_]+)`$", part[1], re.MULTILINE)
    reasons = {kind.name.lower() for kind in native().errors.values()} - {"ok"}
    assert sorted(headings) == sorted(reasons)


def test_every_reason_says_what_and_what_to_do() -> None:
    """A code alone is no message."""
    for kind in native().errors.values():
        assert kind.meaning, kind.name
        assert kind.hint, kind.name
        assert kind.meaning[0].islower(), kind.name
