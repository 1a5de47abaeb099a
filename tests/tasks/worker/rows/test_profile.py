import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.profiles import ColumnProfile, SpanProfile
from tasks.contracts.references import CheckpointRef
from tasks.foundation.languages import UNSURE, languages
from tasks.worker import validate
from tasks.worker.model.features import FeatureTable
from tasks.worker.model.tokens import train_tokenizer
from tasks.worker.rows import profile, row_checks
from tasks.worker.rows.profile import DistinctCounts, RowSample
from tests.support.pages.golden import Golden
from tests.support.workspace.spans import MARCH, check, failed, job, row, rows, write_span

PARENT = CheckpointRef(prefix="lineages/main/step-00000010", step=10, sha256="0a")
DAYS = (dt.datetime(2026, 3, 4, 12, tzinfo=dt.UTC), dt.datetime(2026, 3, 31, 23, 59, tzinfo=dt.UTC))
SENTENCES = (
    "the lamp is red and very bright",
    "die Lampe ist rot und sehr hell für mich",
    "a chair for the whole family",
)


def profile_of(store: DirectoryStore, **inputs: Any) -> SpanProfile:
    outcome = validate.judge(job(store, **inputs))
    assert outcome.profiles == {"2026-03": "runs/k/validate/attempt-1/profiles/2026-03.json"}
    return SpanProfile.model_validate_json(store.read(outcome.profiles["2026-03"]))


def column(of: SpanProfile, name: str) -> ColumnProfile:
    (found,) = [each for each in of.columns if each.name == name]
    return found


def test_a_profile_says_what_each_column_holds(store: DirectoryStore, tmp_path: Path):
    values = [
        row(n, query=SENTENCES[n % 3], price=None if n % 4 == 0 else float(n), brand=("acme", "zen")[n % 10 == 0])
        for n in range(80)
    ]
    write_span(store, tmp_path, MARCH, [*values, row(99, item=None)])
    found = profile_of(store)
    assert (found.rows, found.sampled, found.unseen, found.unknown_tokens) == (80, 80, {}, None)
    price = column(found, "price")
    assert (price.kind, price.type, price.null_share, price.distinct) == ("number", "double", 0.25, 60)
    assert (price.quantiles["0"], price.quantiles["0.5"], price.quantiles["1"]) == (1.0, 40.0, 79.0)
    brand = column(found, "brand")
    assert [(each.value, each.share) for each in brand.top] == [("acme", 0.9), ("zen", 0.1)]
    query = column(found, "query")
    assert (query.kind, query.distinct, query.quantiles["1"]) == ("text", 3, 40.0)
    assert [each.value for each in query.top] == ["en", "de"]
    assert {each.name: each.kind for each in found.columns}["row_id"] == "id"


def test_a_profile_counts_days_values_and_bars(store: DirectoryStore, tmp_path: Path):
    values = [row(n, price=float(min(n, 99) if n else 10_000), label=float(n % 3)) for n in range(100)]
    write_span(store, tmp_path, MARCH, [{**each, "time": DAYS[n % 4 == 0]} for n, each in enumerate(values)])
    found = profile_of(store)
    assert found.times == {"2026-03-04": 75, "2026-03-31": 25}
    price = column(found, "price")
    assert price.top == ()
    assert price.histogram is not None
    assert sum(price.histogram.shares) == pytest.approx(1.0, abs=1e-4)
    assert price.histogram.edges[0] == pytest.approx(1.99)
    assert price.histogram.edges[-1] < 200  # not 10,000, which is in the last bar
    label = column(found, "label")
    assert label.histogram is None
    assert [(each.value, each.share) for each in label.top] == [("0", 0.34), ("1", 0.33), ("2", 0.33)]
    assert column(found, "row_id").histogram is None


def test_a_profile_does_not_depend_on_the_pieces(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_span(store, tmp_path, MARCH, rows(200))
    monkeypatch.setattr(profile, "SAMPLE_ROWS", 60)
    whole = profile_of(store)
    assert (whole.rows, whole.sampled, column(whole, "item").distinct) == (200, 60, 200)
    monkeypatch.setattr(row_checks, "JUDGED_ROWS", 35)
    store.delete("runs")
    store.delete("catalogue")
    assert profile_of(store) == whole


def test_what_the_parent_has_never_seen_is_a_warning(store: DirectoryStore, tmp_path: Path, golden: Golden):
    sizes = {"brand": 4, "locale": 8}
    table = FeatureTable(numeric={}, categorical={"brand": ("acme",), "locale": ("de", "en")}, query=(), rows=sizes)
    texts = (str(value[side]) for value in rows(40) for side in ("query", "item"))
    folder = tmp_path / "parent"
    folder.mkdir()
    (folder / "features.json").write_bytes(table.to_json())
    (folder / "tokenizer.json").write_text(train_tokenizer(texts, 200).to_str(), encoding="utf-8")
    (folder / "shape.json").write_text('{"prompts": {}}', encoding="utf-8")
    commit(store, PARENT.prefix, folder, "checkpoint", {})
    write_span(store, tmp_path, MARCH, [*rows(30), *rows(10, start=30, query="赤いランプ が 好き です")])
    outcome = validate.judge(job(store, parent=PARENT))
    assert failed(outcome) == ["brand unseen", "unknown tokens"]
    assert check(outcome, "brand unseen").observed == 0.5
    golden(check(outcome, "brand unseen").sentence)
    assert check(outcome, "locale unseen").observed == 0.0
    lenient = ["validate.max_unseen_share=0.5", "validate.max_unknown_token_share=1"]
    store.delete("catalogue")
    assert failed(validate.judge(job(store, parent=PARENT, overrides=lenient))) == []


def test_languages_of_sentences_are_known_and_codes_are_not():
    assert languages(SENTENCES) == ["en", "de", "en"]
    assert languages(["", "12-34", "XK42"]) == [UNSURE] * 3


def test_a_sample_is_fair_and_the_same_in_any_pieces():
    ids = [f"r{number}" for number in range(5000)]
    table = pa.table({"row_id": ids, "value": np.arange(5000.0)})
    kept = []
    for pieces in (5000, 170):
        sample = RowSample(500)
        for start in range(0, 5000, pieces):
            sample.add(table.slice(start, pieces))
        kept.append(sample.table()["value"].to_pylist())
    assert kept[0] == kept[1] == sorted(kept[0])
    assert len(kept[0]) == 500
    assert np.mean(kept[0]) == pytest.approx(2500, rel=0.06)


def test_many_distinct_values_are_estimated():
    counts = DistinctCounts()
    for start in range(0, 60_000, 10_000):
        values = pa.array([f"v{number}" for number in range(start, start + 15_000)])
        counts.add(pa.table({"many": values}))
    assert counts.of("many") == pytest.approx(65_000, rel=0.05)
