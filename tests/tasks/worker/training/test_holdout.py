from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.contracts.references import HoldoutRule
from tasks.data.holdout import split_holdout
from tasks.data.rows import distinct_items
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embed import EmbedSettings
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.holdout import Holdout, HoldoutResults, judge, make_holdout
from tasks.worker.training.start import build_parts
from tests.support.workspace.jobs import CLASSIFIER, all_rows, make_workspace, tiny_config

CONFIG = tiny_config(CLASSIFIER, "heads.contrastive.positives_only=true")
SETTINGS = EmbedSettings(16, 16, "fp32")


Made = tuple[pa.Table, pa.Table, ModelParts]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All rows, the holdout rows and a model."""
    store, ref = make_workspace(tmp_path_factory.mktemp("holdout"), rows=200, distinct=30)
    rows = all_rows(store, [ref], CONFIG)
    return rows, split_holdout(rows, HoldoutRule.of(CONFIG.evaluate)).held, build_parts(CONFIG, [rows])


def judged(parts: ModelParts, holdout: Holdout) -> HoldoutResults:
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        return judge(parts, holdout, accelerator, SETTINGS)


def test_the_corpus_holds_each_item_once_and_each_row_its_own_item(made: Made):
    rows, held_out, parts = made
    holdout = make_holdout(held_out, distinct_items(rows), parts, CONFIG)
    corpus = distinct_items(rows)
    assert len(holdout.corpus) == 30 == len(set(rows["item_id"].to_pylist()))
    own = [corpus["item_id"][int(place)].as_py() for place in holdout.target]
    assert own == held_out["item_id"].to_pylist()
    assert len(holdout.query) == held_out.num_rows


def test_the_last_text_of_an_item_counts(made: Made):
    rows, held_out, parts = made
    changed = held_out.slice(0, 1).set_column(
        held_out.column_names.index("item"), "item", pa.array(["a brand new text now"])
    )
    holdout = make_holdout(held_out, distinct_items(pa.concat_tables([rows, changed])), parts, CONFIG)
    tokens = parts.tokenizer.encode("a brand new text now").ids
    assert holdout.corpus.of(holdout.target[:1])[0].tolist() == tokens


def test_only_pairs_count_for_retrieval_and_only_labelled_rows_for_classes(made: Made):
    rows, held_out, parts = made
    holdout = make_holdout(held_out, distinct_items(rows), parts, CONFIG)
    labels = np.array(held_out["label"].to_pylist())
    assert (holdout.pair == (labels >= 4)).all()
    assert (holdout.label_class == np.where(labels <= 2, 0, np.where(labels >= 4, 1, -1))).all()


def test_metrics_over_a_part_of_the_rows():
    holdout = Holdout(
        **dict.fromkeys(["query", "query_features", "corpus", "corpus_features", "target", "relevant"]),  # type: ignore[arg-type]
        pair=np.array([True, True, False, True]),
        label_class=np.array([1, 0, -1, 1]),
        competitors=np.full(4, 100),
    )
    found = HoldoutResults(
        ranks=np.array([1, 20, 1, 2]), probabilities=np.array([0.9, 0.8, 0.1, 0.7]), predicted=np.array([1, 1, 0, 1])
    )
    everything = found.metrics(holdout)
    assert everything["recall@10"] == pytest.approx(2 / 3)
    assert everything["recall@1"] == pytest.approx(1 / 3), "the third row is no pair"
    assert everything["accuracy"] == pytest.approx(2 / 3), "the third row has no class"
    assert found.metrics(holdout, np.array([False, False, False, True])) == {
        "recall@1": 0.0,
        "recall@10": 1.0,
        "recall@100": 1.0,
        "mrr@10": 0.5,
        "ndcg@10": pytest.approx(1 / np.log2(3)),
        "accuracy": 1.0,
        "macro_f1": 0.5,
        "log_loss": pytest.approx(-np.log(0.7)),
        "calibration_error": pytest.approx(0.3),
    }
    assert found.metrics(holdout, np.array([False, False, True, False])) == {}


def test_a_model_without_classifier_has_no_probabilities(made: Made):
    rows, held_out, _ = made
    config = tiny_config()
    parts = build_parts(config, [rows])
    found = judged(parts, make_holdout(held_out, distinct_items(rows), parts, config))
    assert found.probabilities is None
    assert set(found.metrics(make_holdout(held_out, distinct_items(rows), parts, config))) == {
        "recall@1",
        "recall@10",
        "mrr@10",
        "ndcg@10",
    }, "among thirty items any is within a hundred"


def test_an_empty_holdout_has_no_metrics(made: Made):
    _, held_out, parts = made
    holdout = make_holdout(held_out.slice(0, 0), held_out.slice(0, 0), parts, CONFIG)
    assert judged(parts, holdout).metrics(holdout) == {}


def test_texts_are_cut_where_serving_cuts_them(tmp_path: Path, made: Made):
    rows, held_out, parts = made
    for longest in (4, 16):
        holdout = make_holdout(held_out, distinct_items(rows), parts, tiny_config(f"infer.max_tokens={longest}"))
        assert holdout.query.lengths.max() <= longest
    assert holdout.query.lengths.max() > 4
