"""Real workers and a learning rate that breaks the model: what the lineage does then, without anyone's help."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import infra.compute.factory
from flows.demo.search_log import write_shop
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.data.mapping import parse_map
from tasks.runs import releases
from tasks.runs.run import Run
from tests.support.fakes.own_process import OwnProcess, encode_here
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import COLUMNS, SETTINGS, SPANS

pytestmark = pytest.mark.pipeline

GATES = [
    {"metric": "recall@10", "direction": "higher", "threshold": -0.15, "baseline": "champion", "severity": "critical"}
]


def test_after_a_broken_model_the_next_span_is_released_from_the_last_accepted_checkpoint(
    prefect: PrefectServer, tmp_path: Path, without_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    runner = OwnProcess(store)
    encode_here(monkeypatch)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    settings = SETTINGS | {
        "evaluate": {"slices": [], "gates": GATES, "holdout_share": 0.3},
        "train": SETTINGS["train"] | {"epochs": 8, "batch_rows": 32},
    }
    config_file = tmp_path / "shop.yaml"
    config_file.write_text(yaml.safe_dump(settings))
    source = tmp_path / "shop.jsonl.gz"
    write_shop(source, spans=len(SPANS), rows_per_span=300, seed=3)
    ingest(store, source, Format.jsonl, "searched_at", SpanKind.month, parse_map(COLUMNS))

    def run(*overrides: str) -> Run:
        return pipeline(store.uri, None, str(config_file), overrides)

    with prefect.in_use():
        good, broken, mended = run(), run("train.learning_rate=3.0"), run()
    assert [report.state for report in (good, broken, mended)] == ["Released", "Rejected", "Released"]
    assert broken.metrics["recall@10"] < mended.metrics["recall@10"] - 0.2
    first, second, third = (spec.inputs for spec in runner.specs if isinstance(spec.inputs, TrainInputs))
    assert first.parent is None
    assert second.parent is not None
    assert third.parent == second.parent  # the model that was released
    assert [rows.span.name for rows in third.rows] == list(SPANS[1:])
    current = releases.current(store)
    assert current is not None
    assert (current.run_key, [rows.span.name for rows in current.rows]) == (mended.run_key, list(SPANS))
