"""Damaged files of a workspace, and every command that reads one: a class and a message, in bounds, never a traceback.

The kinds of files are listed from a workspace that the pipeline wrote, so that a new kind can't be forgotten.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import infra.compute.factory
from flows.cli import searching
from flows.cli.app import all_commands
from flows.presentation.run.report import write_run_report
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunPlan, RunState
from tasks.contracts.search import Answer, Searchable
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.planning.next_run import plan_run
from tasks.runs import invocations
from tasks.runs.plan import save_plan
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.made_up import CHANGES
from tests.support.processes import command
from tests.support.processes.bounds import bounded

SEED, SAMPLE = 20261122, 40
IMPORTS_TOO = 512.0  # MiB, as a command imports what it needs
SPANS, RUNNING = ("2021-Q1", "2021-Q2"), "2021-Q3"
SMALL = ("--set", "model.scratch.layers=1")
READING = (
    ("status",),
    ("releases",),
    ("history", "--json"),
    ("history", "--ledger"),
    ("report", "--span", SPANS[1]),
    ("history", "--prometheus", "-"),
    ("freshness", *SMALL),
    ("hosts",),
    ("backfill", "list"),
    ("run", "--dry-run", "--span", SPANS[1], *SMALL),
    ("run", "--dry-run", *SMALL),
    ("prune", "--dry-run"),
    ("search", "lamp"),
    ("diff",),
)
OTHERS = {  # commands of a workspace that are no probes
    "adopt", "backfill", "backfill pause", "backfill resume", "backfill cancel",
    "bakeoff", "deploy", "gate", "import-checkpoint", "ingest", "parity", "publish", "refresh",
    "hold", "rollback", "skip",  # they write
    "doctor", "look", "reap", "serve",  # they look at more than the workspace, or do not end
}  # fmt: skip
WRONG = ("yesterday", "", "../../up", -1, 2**70, 1e308, None, True, [], {})
KNOWN = {policy.exit_code for failure, policy in POLICIES.items() if failure is not FailureClass.CODE} | {0}


def flipped(raw: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(raw)) if raw else 0
    return raw[:place] + bytes([raw[place] ^ (1 << chance.randrange(8))]) + raw[place + 1 :] if raw else b"\xff"


def of_another_version(raw: bytes, chance: random.Random) -> bytes:
    try:
        content = json.loads(raw)
    except ValueError:
        return b"PK\x03\x04" + raw
    return json.dumps({**content, "version": 99, "unknown": 1} if isinstance(content, dict) else [content]).encode()


def inner(content: Any) -> Iterator[tuple[Any, Any]]:
    """All containers inside a value, each with each of its keys or places."""
    for key in list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield content, key
        yield from inner(content[key])


def with_a_wrong_value(raw: bytes, chance: random.Random) -> bytes:
    """Another value in place of one at any depth of the record: a wrong time, number or list."""
    try:
        places = list(inner(content := json.loads(raw)))
    except ValueError:
        return raw[::-1]
    for container, key in chance.sample(places, min(1, len(places))):
        container[key] = chance.choice(WRONG)
    return json.dumps(content).encode()


def without_a_value(raw: bytes, chance: random.Random) -> bytes:
    """A value less, at any depth of the record."""
    try:
        places = list(inner(content := json.loads(raw)))
    except ValueError:
        return raw[1:]
    for container, key in chance.sample(places, min(1, len(places))):
        del container[key]
    return json.dumps(content).encode()


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flipped": flipped,
    "cut": lambda raw, chance: raw[: len(raw) // 2],
    "emptied": lambda raw, chance: b"",
    "replaced": lambda raw, chance: chance.randbytes(64),
    "of another version": of_another_version,
    "with a wrong value": with_a_wrong_value,
    "without a value": without_a_value,
    "deleted": lambda raw, chance: None,
    "a folder": lambda raw, chance: None,
}


@pytest.fixture(autouse=True)
def _no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of search and diff, which open models, answer at once: here the commands' own reading is probed."""

    class Worker:
        about = Searchable(release=2, model_version="m", vectors=3, seconds=0.1)

        def ask(self, text: str, k: int) -> Answer:
            return Answer(hits=(), seconds=0.1)

    monkeypatch.setattr(searching, "searcher", lambda store, release: contextlib.nullcontext(Worker()))
    monkeypatch.setattr(searching, "answered_once", lambda *asked: CHANGES.model_dump_json())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Two released spans, each with the record of its invocation and its report, and a run that has just begun."""
    store = DirectoryStore(tmp_path_factory.mktemp("workspace"))
    with pytest.MonkeyPatch.context() as patch:
        runner = FakeRunner(store)
        patch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
        ingest(store, *SPANS, RUNNING)
        for span in SPANS:
            plan: RunPlan = plan_run(store, small_config(), span)
            begun = invocations.begin(store, plan)
            carry_out(plan)
            invocations.end(store, begun, RunState.RELEASED)
            write_run_report(store, plan.run_key)
        plan = plan_run(store, small_config(), RUNNING)
        save_plan(store, plan)
        invocations.begin(store, plan)
    return store


def kinds(store: DirectoryStore) -> dict[str, str]:
    """A file of each kind: names of spans, keys and numbers don't make a kind."""
    keys = [key for top in ("", ".locks") for key in store.list(top)]
    return {re.sub(r"\d{4}-Q\d|[0-9a-f]{8,}|\d+", "*", key): key for key in keys}


def probe(
    store: DirectoryStore, capsys: pytest.CaptureFixture[str], key: str, damage: str, arguments: tuple[str, ...]
) -> str | None:
    """Damage a file, call a command and repair the file; return what was wrong with the command."""
    path: Path = store.path(key)
    raw = path.read_bytes()
    damaged = DAMAGES[damage](raw, random.Random(f"{key} {damage}"))
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damaged is not None:
        path.write_bytes(damaged)
    try:
        with bounded(mib=IMPORTS_TOO):
            result = command.call(capsys, *arguments, "--workspace", store.uri)
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(raw)
    if "Traceback" in result.err or result.code not in KNOWN:
        return f"{key} {damage}: millrace {' '.join(arguments)} ended with {result.code}: {result.err[-1500:]}"
    return None


def of_a_workspace() -> set[str]:
    return {name for name, each in all_commands().items() if "workspace" in {param.name for param in each.params}}


def unnamed() -> list[tuple[str, ...]]:
    """Commands that neither READING nor OTHERS names, so that a new one is probed too, without arguments."""
    named = {" ".join(words[:number]) for words in READING for number in (1, 2)} | OTHERS
    return [tuple(name.split()) for name in sorted(of_a_workspace() - named)]


def probes(store: DirectoryStore) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    return itertools.product(kinds(store).values(), DAMAGES, (*READING, *unnamed()))


def test_no_command_takes_a_damaged_file_badly_in_a_sample(
    workspace: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of file once at least; which damages and commands, the seed says."""
    chance, per_kind = random.Random(SEED), {}
    for each in chance.sample(everything := list(probes(workspace)), len(everything)):
        per_kind.setdefault(each[0], each)
    sample = [*per_kind.values(), *chance.sample(everything, SAMPLE)]
    assert [wrong for each in sample if (wrong := probe(workspace, capsys, *each))] == []


@pytest.mark.proof
def test_no_command_takes_a_damaged_file_badly(workspace: DirectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert [wrong for each in probes(workspace) if (wrong := probe(workspace, capsys, *each))] == []


def test_the_others_are_commands_of_a_workspace() -> None:
    assert of_a_workspace() >= OTHERS


@pytest.mark.parametrize(("key", "code"), [("releases/CURRENT", 74), ("releases/2.json", 0)])
def test_a_release_that_is_a_folder_is_named(
    workspace: DirectoryStore, capsys: pytest.CaptureFixture[str], key: str, code: int
) -> None:
    store, path = workspace, workspace.path(key)
    raw = path.read_bytes()
    path.unlink()
    path.mkdir()
    try:
        result = command.call(capsys, "releases", "--workspace", store.uri)
        as_json = command.call(capsys, "releases", "--json", "--workspace", store.uri)
    finally:
        path.rmdir()
        path.write_bytes(raw)
    assert (result.code, as_json.code) == (code, code)
    assert f"{store.uri}/{key} is a folder" in result.out + result.err
    if code == 0:  # the others are shown
        assert re.search(r"^ +1 +2021-Q1 ", result.out, re.M)
        assert [each["number"] for each in as_json.json["releases"]] == [1]
        assert [each["number"] for each in as_json.json["unreadable"]] == [2]
        assert as_json.json["current"] == 2


def test_a_bad_time_in_the_record_of_an_invocation_is_named(
    workspace: DirectoryStore, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    key = next(key for key in workspace.list("runs") if "/invocations/" in key and b'"Running"' in workspace.read(key))
    raw = workspace.read(key)
    workspace.write(key, json.dumps({**json.loads(raw), "began_at": "yesterday"}).encode())
    try:
        result = command.call(capsys, "freshness", *SMALL, "--workspace", workspace.uri)
    finally:
        workspace.write(key, raw)
    assert result.code == 0, "the other records are shown"
    assert f"{key} is not readable" in caplog.text
