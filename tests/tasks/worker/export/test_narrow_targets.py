"""Targets with a form or a width: narrow vectors are served if the holdout's queries find as much by them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import PublishInputs
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release
from tasks.foundation.errors import ConfigError, DataError
from tasks.publish import publish_to_all, swap_back
from tasks.runs import releases, served_targets
from tasks.worker import publish
from tasks.worker.export.target import Shape
from tasks.worker.export.targets import open_target
from tasks.worker.search.changes import holdout_queries
from tests.support.fakes.own_process import encode_here
from tests.support.processes.online_consumer import consumer
from tests.support.processes.online_server import OnlineServer, running
from tests.support.workspace.publications import publish_job
from tests.support.workspace.served import PartlyReal, copy_of, in_use, make_served
from tests.tasks.worker.export.places import Place, empty_place, lancedb_place, qdrant_place
from tests.tasks.worker.export.watched import Watched

QUERY = "want a red shoe 3 please"
WIDTHS = "heads.contrastive.matryoshka=[8, 16]"
IN_PLACE = ("lancedb int8", "lancedb binary", "pgvector binary")  # whose index can be made again
HELD = "evaluate.holdout_share=0.5"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Release 1 of a model of 32 numbers that is trained at 8 and 16, and its refresh. Not to be changed."""
    return make_served(tmp_path_factory.mktemp("narrow"), WIDTHS, HELD, spans=("2021-Q1",))


@pytest.fixture(scope="module")
def server(narrow: DirectoryStore) -> Iterator[OnlineServer]:
    """An encoder of the model, for all copies of the workspace."""
    with running(narrow) as server:
        yield server


@pytest.fixture
def store(narrow: DirectoryStore, tmp_path: Path) -> Iterator[DirectoryStore]:
    with pytest.MonkeyPatch.context() as patch:
        encode_here(patch)
        yield copy_of(narrow, tmp_path)


@pytest.fixture(params=[*IN_PLACE, "opensearch int8"])
def form(request: pytest.FixtureRequest) -> str:
    return request.param.split()[1]


@pytest.fixture
def place(request: pytest.FixtureRequest, form: str, tmp_path: Path) -> Place:
    """An empty place of each kind with forms, whose target has none yet."""
    return empty_place(request.node.callspec.params["form"].split()[0], request, tmp_path / "target")


def config_of(place: Place, more: str = "", *overrides: str) -> Config:
    """Args: more: settings of the target."""
    target = place.setting.removesuffix("}") + (f", {more}}}" if more else "}")
    return place._replace(setting=target).config(WIDTHS, HELD, *overrides)


def bring(store: DirectoryStore, config: Config, release: Release, **more: Any) -> PublishOutcome:
    return publish.run(publish_job(store, config, release, **more))


def rows_below(store: DirectoryStore, prefix: str) -> list[dict[str, Any]]:
    parts = sorted(store.path(prefix).glob("*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def recall_by_hand(store: DirectoryStore, release: Release, queries: list[dict[str, Any]], width: int) -> float:
    """The share of queries whose item is among ten, without other items that a row pairs with the query."""
    rows = rows_below(store, release.vectors_prefix)
    model = SentenceTransformer(str(store.path(release.model_prefix)), device="cpu")
    asked = model.encode_query([row["query"] for row in queries])[:, :width]
    items = np.array([row["vector"] for row in rows])[:, :width]
    cosines = (asked / np.linalg.norm(asked, axis=1, keepdims=True)) @ (
        items / np.linalg.norm(items, axis=1, keepdims=True)
    ).T
    pairs = {(row["query"], row["item"]) for row in rows_below(store, "spans/2021-Q1/v1")}
    found = 0
    for row, scores in zip(queries, cosines, strict=True):
        order = [rows[place] for place in np.argsort(-scores)]
        counted = [
            each["item_id"]
            for each in order
            if each["item_id"] == row["item_id"] or (row["query"], each["text"]) not in pairs
        ]
        found += row["item_id"] in counted[:10]
    return found / len(queries)


@pytest.mark.parametrize("width", [8, 32])
def test_the_recall_is_that_of_a_search_by_hand(store, place, form, width):
    release = releases.read(store, 1)
    config = config_of(place, f"form: {form}" + (f", width: {width}" if width < 32 else ""), "publish.max_loss=1")
    outcome = bring(store, config, release, only_current=False)
    queries = holdout_queries(store, release.rows, config).to_pylist()
    assert outcome.narrow is not None
    assert outcome.narrow.queries == len(queries)
    assert outcome.narrow.recall_at_10 == pytest.approx(recall_by_hand(store, release, queries, width))
    assert outcome.narrow.whole == pytest.approx(recall_by_hand(store, release, queries, 32))
    assert outcome.narrow.loss_low < outcome.narrow.loss < outcome.narrow.loss_high


def test_narrow_vectors_that_find_too_little_are_not_served(store, place, form, monkeypatch):
    old, new = releases.read(store, 1), releases.read(store, 2)
    before = bring(store, config_of(place), old, only_current=False).table
    config = config_of(place, f"form: {form}, width: 16", "publish.min_recall=0")
    watched = Watched.instead_of_targets(monkeypatch)
    watched.answers = lambda hits: []
    with pytest.raises(DataError, match=r"0\.\d+ .*max_loss 0\.02"):
        bring(store, config, new)
    watched.answers = list
    with contextlib.closing(open_target(config.publish.targets[0])) as target:
        assert target.serving() == before
    assert bring(store, config, new).served_before == before, "the same table, now with good answers"


def test_another_form_gets_another_table_and_is_measured_once(store, place, form):
    release = releases.read(store, 2)
    whole, narrow = config_of(place), config_of(place, f"form: {form}, width: 16")
    first = bring(store, whole, release)
    assert first.narrow is None
    second = bring(store, narrow, release)
    assert (second.served_before, second.loaded) == (first.table, release.vectors)
    again = bring(store, narrow, release, measured=second.table)
    assert (again.table, again.loaded, again.narrow) == (second.table, 0, None)
    back = bring(store, whole, release)
    assert (back.table, back.loaded) == (first.table, 0), "it was kept"
    assert len((place.search(np.ones(32, dtype=np.float32), 100)) or []) == release.vectors


def test_the_recall_stays_on_record_and_a_rollback_to_another_form_loads(store, place, form):
    whole, narrow = config_of(place), config_of(place, f"form: {form}, width: 16")
    current = releases.read(store, 2)
    with in_use(store) as runner:
        (served,) = publish_to_all(store, narrow, current, True)
        assert served.narrow is not None
        (again,) = publish_to_all(store, narrow, current, True)
        assert again.narrow == served.narrow
        assert [inputs.measured for inputs in _publications(runner)] == [None, served.table]
        runner.specs.clear()
        swap_back(store, narrow, current)
        assert [inputs.swap_alone for inputs in _publications(runner)] == [True]
        swap_back(store, whole, current)
        assert len(runner.specs) == 1, "its table is of another form"
    assert served_targets.of_target(store, "look") == served_targets.measured(store, 2, "look")


def _publications(runner: PartlyReal) -> list[PublishInputs]:
    return [spec.inputs for spec in runner.specs if isinstance(spec.inputs, PublishInputs)]


def test_the_code_of_the_page_asks_for_the_width_and_compares_again(store, place, form, server):
    config = config_of(place, f"form: {form}, width: 16")
    with in_use(store):
        publish_to_all(store, config, releases.read(store, 2), True)
        names = consumer(config.publish.targets[0], server.url)
        with contextlib.ExitStack() as opened:
            for each in {"client", "connection", "encoder"} & set(names):
                opened.enter_context(contextlib.closing(names[each]))
            hits, query = names["search"](QUERY), names["embed"](QUERY, releases.read(store, 2).model.version, 16)
    with contextlib.closing(open_target(config.publish.targets[0])) as target:
        nearest = target.nearest(target.serving() or "", np.array(query, dtype=np.float32), 10)
    ids = [(hit.get("_source", hit))["item_id"] if isinstance(hit, dict) else hit[0] for hit in hits]
    assert ids == nearest


def test_lancedb_asks_the_encoder_for_vectors_of_the_targets_width(store, tmp_path, server):
    place = lancedb_place(tmp_path / "target")
    with in_use(store):
        config = config_of(place, f"width: 16, encoder: '{server.url}'")
        (served,) = publish_to_all(store, config, releases.read(store, 2), True)
        table: Any = lancedb.connect(str(tmp_path / "target")).open_table(served.table)
        assert len(table.search(QUERY).distance_type("cosine").limit(3).to_list()) == 3


@pytest.mark.parametrize("form", IN_PLACE, indirect=True)
def test_an_index_of_another_form_is_made_again(store, place, form):
    release, config = releases.read(store, 2), config_of(place, f"form: {form}")
    table = bring(store, config, release).table
    assert table is not None
    with contextlib.closing(open_target(config_of(place).publish.targets[0])) as other:
        other.index(table)
    with contextlib.closing(open_target(config.publish.targets[0])) as target:
        kinds = _kinds(target, table)
        assert bring(store, config, release, measured=table).loaded == 0
        assert _kinds(target, table) != kinds
        target.erase(table, ["i007"])
        assert getattr(target.index(table), "rows", None) == release.vectors - 1
        assert "i007" not in target.nearest(table, np.ones(32, dtype=np.float32), release.vectors)


def _kinds(target: Any, table: str) -> set[str]:
    """The kinds of a table's indexes, as the service names them."""
    if hasattr(target, "_db"):
        return {each.index_type for each in target._db.open_table(table).list_indices()}
    found = target._connection.execute("SELECT indexdef FROM pg_indexes WHERE tablename = %s", (table,))
    return {text.rpartition(" ")[2] for (text,) in found}


@pytest.mark.parametrize(
    ("rows", "trained", "error"),
    [
        (True, "heads.contrastive.matryoshka=[4, 8]", "ConfigError: .*not trained at 4 numbers; .*: 8, 16"),
        (False, "heads.contrastive.matryoshka=[4, 8]", "DataError: .*no holdout query"),
    ],
)
def test_a_width_that_can_not_be_proved_is_refused(store, tmp_path, rows, trained, error):
    """The model's own widths decide, not the configuration's."""
    release = releases.read(store, 2)
    release = release if rows else release.model_copy(update={"rows": ()})
    place = lancedb_place(tmp_path / "target")
    target = place.setting.removesuffix("}") + f", width: {4 if rows else 8}}}"
    config = place._replace(setting=target).config(trained, HELD)
    kind, _, message = error.partition(": ")
    with pytest.raises({"ConfigError": ConfigError, "DataError": DataError}[kind], match=message):
        bring(store, config, release)
    assert place.search(np.ones(8, dtype=np.float32), 1) is None


def test_a_kind_without_forms_gets_shorter_vectors(store, tmp_path):
    release, place = releases.read(store, 2), qdrant_place(tmp_path / "target")
    outcome = bring(store, config_of(place, "width: 8", "publish.max_loss=1"), release)
    assert outcome.narrow is not None
    assert len(place.search(np.ones(8, dtype=np.float32), 100) or []) == release.vectors


def test_lancedb_refuses_bits_that_fill_no_byte(store, tmp_path):
    place = lancedb_place(tmp_path / "target")
    opened = contextlib.closing(open_target(config_of(place, "form: binary").publish.targets[0]))
    with opened as target, pytest.raises(ConfigError, match=r"multiple of 8 .* 12"):
        target.create("look_r1_00000000", Shape(12, False, "m"))
