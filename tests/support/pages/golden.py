"""Texts that people read, compared whole with those on record: pages, screens and findings.

The texts of `test_a.py` lie beside it in `golden/test_a.txt`, a section for each test. `pytest test_a.py
--write-golden` writes them; look at the difference before committing it. Paths, keys and hashes differ between runs
and machines, so each is one word there.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path

WIDTH = 116  # of lines in the file
HEAD = "== "
NUMBER = " #"


class Golden:
    """What one test says. Its sections are named after it; that of the second call ends with ` #2`."""

    def __init__(self, path: Path, test: str, temporary: Path, write: bool) -> None:
        self.path, self.test, self.write = path, test, write
        self._same = {rf"{re.escape(str(temporary))}/[\w.-]+": "TMP"} | SAME
        self._calls = 0

    def __call__(self, *texts: str | Iterable[str], hide: str | None = None) -> None:
        """Compare texts, or lists of lines; each match of `hide` differs between runs.

        Raises:
            AssertionError: they differ from those on record, or there are none.
        """
        self._calls += 1
        section = self.test if self._calls == 1 else f"{self.test}{NUMBER}{self._calls}"
        parts = (text if isinstance(text, str) else "\n".join(text) for text in texts)
        found = "\n--\n".join(self._laid_out(part, hide) for part in parts)
        sections = read(self.path)
        if self.write:
            if self._calls == 1:
                sections = {name: text for name, text in sections.items() if name.partition(NUMBER)[0] != self.test}
            write(self.path, sections | {section: found})
        else:
            known = sections.get(section, "")
            lines = unified_diff(known.splitlines(), found.splitlines(), f"{self.path}: {section}", "now", lineterm="")
            assert found == known, "\n".join([*lines, "keep it with: pytest FILE --write-golden"])

    def _laid_out(self, text: str, hide: str | None) -> str:
        for pattern, word in ({hide: "…"} if hide else {}).items() | self._same.items():
            text = re.sub(pattern, word, text, flags=re.MULTILINE)
        lines = (re.sub(r"(?<=\S)  +", "  ", line).rstrip() for line in text.strip("\n").splitlines())
        return "\n".join(textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False) for line in lines)


SAME = {
    r"\b[0-9a-f]{16,64}\b": "KEY",
    r"(?<=\d{8}-)[0-9a-f]{8}\b": "HASH",  # of a model's version
    r"(?<=[a-z]-)(?!\d{8}\b)[0-9a-f]{8}\b": "HASH",  # of a branch, or of a model without weights
    r"(?<=^Made )\S+ \S+ UTC": "NOW",
    r"[─━]{3,}": "───",
    r"(^[\d.,]+( [\d.,–]+)*\n){6,}": "…\n",  # a long table of numbers
}


def read(path: Path) -> dict[str, str]:
    """The sections of a file by name; empty without the file."""
    found = path.read_text().split(f"\n{HEAD}") if path.exists() else []
    return {name.removeprefix(HEAD): text.strip("\n") for name, _, text in (each.partition("\n") for each in found)}


def write(path: Path, sections: dict[str, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(f"{HEAD}{name}\n{text}\n" for name, text in sorted(sections.items())))
