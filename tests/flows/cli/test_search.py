"""`millrace search` where it can't answer; tests/pipeline searches a real release."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import searching
from flows.cli.serving import search_worker
from infra.store.directory import DirectoryStore
from tasks.contracts.references import RowsRef, SpanRef
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs import releases
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.command import call
from tests.support.workspace.past import write_past


def test_an_empty_text_and_a_workspace_without_a_release_are_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(ConfigError, match="is empty"):
        searching.search(store, "  ", None, 10)
    with pytest.raises(ConfigError, match="first: millrace run"):
        searching.search(store, "lamp", None, 10)


@pytest.mark.parametrize("made", [1, 2])
def test_a_workspace_whose_pointer_is_gone_names_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: int
) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    write_past(store, made)
    ingest(store, "2026-01")
    store.delete(releases.CURRENT)
    for asked in (["status"], ["search", "lamp"], ["diff"], ["hold", "--reason", "why"], ["refresh"]):
        result = call(capsys, *asked, "--workspace", store.uri)
        said = f"{store.uri}/releases/CURRENT is gone, so none of its releases is current"
        assert said in result.err + result.out, asked
        assert f"millrace rollback --to {made}" in result.err + result.out


def test_a_release_is_not_compared_with_itself(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write_past(store, 2)
    for before, after in ((1, 1), (2, None)):
        with pytest.raises(ConfigError, match=f"both releases are {before}"):
            searching.diff(store, before, after)


def _of_many_spans(store: DirectoryStore) -> None:
    """Write two releases of a lineage that trained on more spans than one argument of a command has room for."""
    write_past(store, 2)
    for number in (1, 2):
        release = releases.read(store, number)
        rows = tuple(
            RowsRef(span=SpanRef(name=f"2026-01-{day}", version=1), prefix=f"runs/{'f' * 200}/{day}", rows=day)
            for day in range(1, 741)
        )
        record = release.model_copy(update={"rows": rows}).to_json()
        assert len(record) > 200_000
        store.write(f"releases/{number}.json", record)


def test_a_release_of_many_spans_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    _of_many_spans(store)
    monkeypatch.setattr(search_worker, "WORKER", (sys.executable, "-m", "tests.support.fakes.search_worker"))
    found = searching.search(store, "lamp", 2, 3)
    assert (found.release, len(found.hits)) == (2, 3)


def test_releases_of_many_spans_are_compared_as_far_as_their_files_are_there(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    _of_many_spans(store)
    with pytest.raises(StoreError, match=r"has no MANIFEST\.json"):
        searching.diff(store, 1, 2)


@pytest.mark.parametrize(
    "ask", [lambda store: searching.search(store, "lamp", None, 1), lambda store: searching.diff(store, 1, 2)]
)
def test_no_code_of_the_current_folder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[DirectoryStore], object]
) -> None:
    store, here = DirectoryStore(tmp_path / "workspace"), tmp_path / "here"
    write_past(store, 2)
    here.mkdir()
    for name in ("torch", "pyarrow", "pydantic"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(here)
    with pytest.raises(StoreError, match=r"has no MANIFEST\.json"):
        ask(store)
    assert not (tmp_path / "ran").exists()


def test_what_the_worker_lacks_is_named_with_its_class(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write_past(store, 1)
    with pytest.raises(StoreError, match=r"/models/main-\d+ has no") as caught:
        searching.search(store, "lamp", None, 10)
    assert "Traceback" not in str(caught.value)
