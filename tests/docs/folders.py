"""The list of folders in docs/architecture.md: a copy of the table with which tests/planes checks the imports."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.planes.test_order import ORDER

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
_LIST = re.compile(r"(## Folders and their order\n.*?^```text\n).*?(^```)", re.M | re.S)


def page() -> str:
    """Return the page with the table as it is now."""
    table = textwrap.dedent(ORDER).strip()
    return _LIST.sub(lambda found: f"{found[1]}{table}\n{found[2]}", PAGE.read_text(encoding="utf-8"))
