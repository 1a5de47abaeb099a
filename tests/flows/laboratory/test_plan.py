"""`millrace plan` and `decide` as people and scripts use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.planning.decisions import skip
from tasks.planning.next_run import plan_run
from tests.support.fakes.commands import SMALL
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.processes.command import Command
from tests.support.workspace.states import released


@pytest.mark.parametrize("arguments", [[], ["--span", "2026-02"]])
def test_a_plan_of_nothing_ends_and_says_so_as_run_does(
    millrace: Command, tmp_path: Path, arguments: list[str]
) -> None:
    """A script that plans before each run stopped there with CONFIG, though nothing is wrong."""
    store = DirectoryStore(tmp_path)
    ingest(store, "2026-01", "2026-02")
    released(store, plan_run(store, small_config(), "2026-01"))
    skip(store, small_config(), "2026-02", "five rows")
    words = ("--workspace", str(tmp_path), *SMALL, *arguments)
    ran, planned = millrace("run", *words), millrace("plan", *words)
    assert (planned.code, planned.err, planned.out) == (0, "", ran.out)
    asked = millrace("plan", *words, "--json").json
    assert (asked["state"], asked["sentence"]) == ("NothingToDo", millrace("run", *words, "--json").json["sentence"])


def test_a_decision_about_nothing_ends_so_too_unless_a_person_overrules_it(millrace: Command, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    ingest(store, "2026-01")
    skip(store, small_config(), "2026-01", "five rows")
    words = ("--workspace", str(tmp_path), *SMALL)
    assert millrace("decide", *words).out == millrace("run", *words).out
    assert millrace("decide", *words, "--json").json["state"] == "NothingToDo"
    overruled = millrace("decide", *words, "--overrule", "train", "--reason", "now")
    assert (overruled.code, overruled.out) == (78, "")
