"""The tutorial, run: each command as written, in their order, in an empty folder with the shop's files.

Each output that the page shows is in the real one, apart from its numbers; `...` stands for any lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from configs.load import load_config
from tests.docs.test_pages import ROOT
from tests.support.workspace.tutorial_log import write_files

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
NUMBER = re.compile(r"main-[0-9a-z-]+|(?<![^\W_])[0-9a-f]{8,}(?![^\W_])|[+−-]?[0-9][0-9.,:]*")
SECONDS = 1800.0
TO_A_RELEASE = 4  # commands, apart from a first look


class Step(NamedTuple):
    """The commands of a block, and the outputs that the page shows after it."""

    line: int
    commands: list[str]
    shown: list[str]


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    for block in BLOCK.finditer(text):
        if not block[1]:
            found.append(Step(text[: block.start()].count("\n") + 1, block[2].splitlines(), []))
        elif block[1] == "text" and found:
            found[-1].shown.append(block[2])
    return found


def masked(text: str) -> str:
    """The text without numbers and hashes, and with one space for each white space."""
    return " ".join(NUMBER.sub("#", text).split())


def missing(shown: str, printed: str) -> str | None:
    """The first part of a shown output, between two `...`, that is not in the printed one after the part before."""
    rest = masked(printed)
    for part in filter(str.strip, shown.split("...")):
        _, found, rest = rest.partition(masked(part))
        if not found:
            return part.strip()
    return None


@contextlib.contextmanager
def shop(folder: Path) -> Iterator[dict[str, str]]:
    """An empty folder with the shop's files; the environment of a person in it."""
    write_files(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE_", "PREFECT_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    try:
        yield environment
    finally:
        bash("millrace down", folder, environment)


def bash(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.pipeline
@pytest.mark.proof
def test_every_command_runs_and_prints_as_written(tmp_path: Path) -> None:
    with shop(tmp_path) as environment:
        for step in steps(PAGE.read_text(encoding="utf-8")):
            printed = ""
            for command in step.commands:
                done = bash(command, tmp_path, environment)
                printed += done.stdout
                refused = any(shown.startswith("CONFIG:") for shown in step.shown)
                assert done.returncode == (78 if refused else 0), f"line {step.line}: {command}\n{done.stdout}"
            for shown in step.shown:
                part = missing(shown, printed)
                assert part is None, f"line {step.line}: not printed:\n{part}\n\nprinted:\n{printed}"
    assert load_config(tmp_path / "millrace.yaml").publish.targets
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_few_commands_lead_to_a_release() -> None:
    commands = [command for step in steps(PAGE.read_text(encoding="utf-8")) for command in step.commands]
    search = next(place for place, command in enumerate(commands) if command.startswith("millrace search"))
    before = [command for command in commands[:search] if not command.startswith("millrace look")]
    assert len(before) == TO_A_RELEASE, before


def test_a_shown_output_is_compared_without_its_numbers() -> None:
    printed = "run 0a1b2c3d over W45\nrecall@10  0.91  –\nmrr@10  0.5  –\nReleased as 1: model main-00000200-94afc4e4"
    assert missing("recall@10 0.80 –\n...\nReleased as 2: model main-00000100-aaaaaaa1", printed) is None
    assert missing("shop_r3_d1c46049, 1,146 vectors", "shop_r3_66848fd2, 1,146 vectors") is None
    assert missing("...\nrecall@10 0.80 –\nReleased", printed) == "recall@10 0.80 –\nReleased"
