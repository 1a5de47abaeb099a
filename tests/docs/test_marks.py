"""Marks of the pages: each section about AWS, Neuron or GPUs says what was proven of it.

A section is the text from one heading to the next. Each section of aws.md needs marks; elsewhere, each section that
names one of SUBJECTS outside of links. Marks stand in the first paragraph, as `*Ran*: ...`, `*Emulated*: ...` or
`*Unproven*: ...`, and count for the section; or in each row of a table whose last column is `here`. The pages BY_PAGE
name AWS in passing: marks at their beginning count for the whole page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs/aws.md", ROOT / "docs/accelerators.md")
BY_PAGE = tuple(ROOT / f"docs/{name}.md" for name in ("benchmarks", "cost", "operations", "runbook", "security"))
SUBJECTS = re.compile(
    r"\b(AWS|Batch|S3|EC2|ECR|CloudFormation|EFA|NeuronCores?|Neuron|TorchNeuron|neuron-\w+|neuronx-cc|torch-neuronx"
    r"|Trainium|Trn\d|trn\d\w*\.\w+|Inferentia\d?|NVIDIA|GPUs?|NCCL|CUDA)\b"
)
MARK = re.compile(r"\*(ran|emulated|unproven)\*: ", re.I)
MARK_IN_ROW = re.compile(r"\b(ran|emulated|unproven)\b", re.I)
HERE = "here"


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Headings of the second and third level, with their text; the page's beginning has the page's title."""
    outside_code = re.sub(r"^```.*?^```", lambda block: block[0].replace("\n#", "\n "), text, flags=re.M | re.S)
    starts = [*re.finditer(r"^#{1,3} (.*)$", outside_code, re.M)]
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        yield start[1], text[start.end() : end.start() if end else None].strip()


def unmarked(text: str, whole: bool = False) -> list[str]:
    """Headings of the sections, and rows of tables with the column `here`, that lack a mark."""
    found = []
    for heading, body in sections(text):
        rows = rows_with_here(body)
        found += [row for row in rows if not MARK_IN_ROW.search(row.rstrip("| ").rpartition("|")[2])]
        named = whole or SUBJECTS.search(re.sub(r"\]\([^)]*\)", "]", f"{heading}\n{body}"))
        if named and not rows and not MARK.search(body.partition("\n\n")[0]):
            found.append(heading)
    return found


def rows_with_here(body: str) -> list[str]:
    """The rows of the tables whose last column is `here`."""
    found = []
    for table in re.findall(r"(?:^\|.*\n?)+", body, re.M):
        head, _, *rows = table.strip().splitlines()
        if head.rstrip("| ").rpartition("|")[2].strip() == HERE:
            found += rows
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_section_says_what_was_proven_of_it(page: Path) -> None:
    assert unmarked(page.read_text(encoding="utf-8"), whole=page.name == "aws.md") == [], (
        "begin the section with its marks: docs/accelerators.md#proofs"
    )


@pytest.mark.parametrize("page", BY_PAGE, ids=lambda page: page.name)
def test_the_beginning_says_what_was_proven_of_the_page(page: Path) -> None:
    assert unmarked_page(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [*PAGES, *BY_PAGE], ids=lambda page: page.name)
def test_a_page_without_its_marks_is_found(page: Path) -> None:
    """The check itself: of each mark that is taken away, and of a planted section."""
    text = page.read_text(encoding="utf-8")
    whole = page.name == "aws.md"
    if page in BY_PAGE:
        assert unmarked_page(MARK.sub("", text))
        return
    begun = [(heading, body.partition("\n\n")[0]) for heading, body in sections(text)]
    marked = [(heading, beginning) for heading, beginning in begun if MARK.search(beginning)]
    assert len(marked) > 3
    for heading, beginning in marked:
        assert heading in unmarked(text.replace(beginning, MARK.sub("", beginning), 1), whole)
    assert unmarked(f"{text}\n## Speed\n\nOn AWS a run takes four hours.\n", whole) == ["Speed"]


def unmarked_page(text: str) -> list[str]:
    """Headings of the sections that lack a mark, unless the page's beginning has one for them all."""
    _, beginning = next(sections(text))
    return [] if MARK.search(beginning) else unmarked(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("## Searches\n\nNo machine is named.", []),
        ("## Speed\n\nA NeuronCore does 100 a second.", ["Speed"]),
        ("## Speed\n\n*Unproven*: all.\n\nA NeuronCore does 100 a second.", []),
        ("## Speed\n\nSeconds.\n\n*Unproven*: a NeuronCore.", ["Speed"]),
        ("## On AWS\n\n```\n# a comment\n```", ["On AWS"]),
        ("## Chips\n\n| chip | here |\n|---|---|\n| Trn1 | emulated |\n| Trn2 | soon |", ["| Trn2 | soon |"]),
        ("## See\n\n[a page](AWS.md)", []),
    ],
)
def test_a_section_or_a_row_without_a_mark_is_found(text: str, found: list[str]) -> None:
    assert unmarked(text) == found
