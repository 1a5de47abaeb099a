"""What the documentation names exists: files, commands with their options, make targets, reasons for pins."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from flows.cli.app import all_commands

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)|<(?:img|source)[^>]*\ssrc(?:set)?=\"([^\"]+)\"")
PATH = re.compile(r"(?<![\w/.-])(?:flows|tasks|infra|configs|tests|docs)/[\w./-]*\w")
YOURS = {"configs/team.yaml", "infra/.env"}  # files that a reader makes


def blocks(text: str) -> str:
    """The fenced code, lines that go on put together."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    return "\n".join(fenced).replace("\\\n", " ")


def named_commands(text: str) -> list[list[str]]:
    """The arguments of each `millrace` in the code blocks, up to a pipe, `&&`, redirection or comment."""
    started = r"(?:^|&&|\||;)\s*(?:\$ )?(?:[A-Z_]+=\S+ +)*(?:\S*/)?millrace +(.*)"
    found = []
    for line in re.findall(started, blocks(text), re.M):
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found.append(list(itertools.takewhile(lambda word: not set(word) <= set("|&;<>()"), words)))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    paths = {
        path for path in PATH.findall(page.read_text(encoding="utf-8")) if not re.search(r"[A-Z]{4}", path)
    } - YOURS
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^(?:\$ )?make ([a-z-]+)", blocks(text), re.M)
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_is_shown_is_understood(page: Path) -> None:
    commands = named_commands(page.read_text(encoding="utf-8"))
    assert commands or page != README
    known = all_commands()
    for words in commands:
        titles = [title for title in known if words[: len(title.split())] == title.split()]
        assert titles, f"millrace {' '.join(words)}"
        title = max(titles, key=len)
        arguments = words[len(title.split()) :]
        if arguments != ["--help"]:
            with known[title].make_context(title, arguments):
                pass  # parsed; nothing is run


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = [a or b for a, b in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_pin_is_exact_and_the_chosen_ones_have_reasons() -> None:
    chosen, resolved = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n\n", maxsplit=1)
    pin = re.compile(r"[A-Za-z0-9._-]+==[^\s#;@]+( +# \S.*)?")
    for line in [*chosen.splitlines(), *resolved.splitlines()]:
        assert "://" not in line
        assert not line or line.startswith("#") or pin.fullmatch(line), line
    without = [line for line in chosen.splitlines() if not line.startswith("#") and "  # " not in line]
    assert without == []


def test_no_package_is_pinned_twice() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = [re.sub(r"[._]", "-", line.partition("==")[0]).lower() for line in lines if "==" in line and line[0] != "#"]
    assert len(names) == len(set(names))
