"""Phrases that hide a noun or an `if`, counted in docstrings, comments and descriptions; their share may only fall.

The counts are per 10,000 words. Whoever rewrites a sentence lowers a limit; nobody raises one.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.planes.source import ROOT, TOPS, source_files

LIMITS = {
    r"what|whatever": 3.0,  # "what becomes of a span": the fate of a span
    r"where (there|it|its|they|that|this|no|none|nothing|one|a|an|the)": 1.0,  # "where there is no release": if
    r"those (that|of|who|which|with|in|on|before|after)": 1.0,  # "those of the parent": the parent's rows
    r"(none|null) where": 0.5,  # None if
    r"(is|are) there": 0.5,  # exists
    r"so (many|long|often|few)": 0.5,  # N steps, N seconds
}
OPENINGS = 10.0  # of 10,000 docstrings, comments and descriptions: "Whether a run is lost"; begin with a noun or a verb
WORD = re.compile(r"[A-Za-z']+")


@functools.cache
def texts(path: Path) -> tuple[str, ...]:
    """The docstrings and comments of a file, and the descriptions of its fields and options."""
    return tuple(_texts(path.read_text()))


def _texts(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.keyword) and node.arg in ("description", "help"):
            yield str(node.value.value) if isinstance(node.value, ast.Constant) else ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.fixture(scope="module")
def prose() -> dict[Path, str]:
    """The text of each file."""
    return {path: re.sub(r"\s+", " ", " \n ".join(texts(path))) for path in source_files(*TOPS)}


@pytest.mark.parametrize("pattern", LIMITS)
def test_phrases_become_rarer(prose: dict[Path, str], pattern: str) -> None:
    found = Counter({path: len(re.findall(rf"\b(?:{pattern})\b", text, re.I)) for path, text in prose.items()})
    words = sum(len(WORD.findall(text)) for text in prose.values())
    rate = 10_000 * found.total() / words
    most = ", ".join(f"{path.relative_to(ROOT)} ({count})" for path, count in found.most_common(5))
    assert rate <= LIMITS[pattern], f"{rate:.1f} of 10,000 words, {LIMITS[pattern]} allowed; write a noun. Most: {most}"


def test_openings_without_a_noun_become_rarer() -> None:
    all_texts = [text.lstrip("# ") for path in source_files(*TOPS) for text in texts(path) if text.strip()]
    begun = [text for text in all_texts if re.match(r"(what|whether|why|of|that|those|which)\b", text, re.I)]
    rate = 10_000 * len(begun) / len(all_texts)
    assert rate <= OPENINGS, f"{rate:.0f} of 10,000 texts, {OPENINGS:.0f} allowed, begin like this one: {begun[0]}"
