"""Rows about several things, by a column: prompts of their own and batches of one, from training to the release."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from configs.schema.config import Config
from configs.schema.model import Prompts
from infra.store.directory import DirectoryStore
from infra.store.manifest import open_folder
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.foundation.errors import ConfigError
from tasks.preflight.encoder import describe_encoder
from tasks.worker import release
from tasks.worker.catalogue.reuse import as_matrix
from tasks.worker.model.tokens import prompts_of
from tasks.worker.training.batches import make_plan
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import make_pairs
from tests.support.fakes.own_process import encode_here
from tests.support.workspace.jobs import (
    LABEL_HEADS,
    all_rows,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

SETTINGS = (
    "features.entity=locale",
    "train.batch_by=locale",
    "model.prompts={query: 'ask ', item: 'thing ', by_entity: {de: {query: 'frage bitte ', item: 'ware jetzt '}}}",
    *LABEL_HEADS,
)


class Made(NamedTuple):
    store: DirectoryStore
    config: Config
    outcome: ReleaseOutcome
    items: pa.Table  # with their released vectors

    @property
    def folder(self) -> Path:
        return self.store.path(self.outcome.model)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    store, rows = make_workspace(tmp_path_factory.mktemp("entities"), rows=90, distinct=70)
    config = tiny_config(*SETTINGS, "train.learning_rate=1e-2", "train.warmup_steps=0", "train.epochs=3")
    model = model_of(train_model(store, config, rows))
    catalogue, vectors = make_catalogue(store, config, rows), infer_vectors(store, config, rows, model).prefix
    inputs = ReleaseInputs(model=model, vectors=vectors, catalogue=catalogue, rows=with_held(store, config, rows))
    with pytest.MonkeyPatch.context() as patch:
        encode_here(patch)
        outcome = release.release(make_job(store, config, inputs))
    folder, manifest = open_folder(store, vectors, "vectors")
    items = pa.concat_tables([pq.read_table(folder / entry.name) for entry in manifest.files])
    of_rows = [all_rows(store, [rows], config)[name].to_pylist() for name in ("item_id", "locale")]
    locale = dict(zip(*of_rows, strict=True))
    about = pa.array([locale[item_id] for item_id in items["item_id"].to_pylist()])
    return Made(store, config, outcome, items.append_column("locale", about))


def test_a_consumer_gets_the_released_vectors_by_the_names_of_the_prompts(made: Made):
    assert made.outcome.min_cosine > 0.9999
    assert made.outcome.min_query_cosine is not None
    assert made.outcome.min_query_cosine > 0.9999
    model = SentenceTransformer(str(made.folder), device="cpu")
    assert set(model.prompts) == {"query", "document", "query:de", "document:de"}
    for locale, name in (("de", "document:de"), ("en", None)):
        own = made.items.filter(pa.array([each == locale for each in made.items["locale"].to_pylist()]))
        released = as_matrix(own["vector"])
        texts = own["text"].to_pylist()
        found = np.asarray(model.encode_document(texts, prompt_name=name, show_progress_bar=False))
        assert (found * released).sum(axis=1).min() > 0.9999
        other = np.asarray(model.encode_document(texts, prompt_name="query", show_progress_bar=False))
        assert (other * released).sum(axis=1).min() < 0.999, "prompts matter"
    assert "document:de" in (made.folder / "README.md").read_text()


def test_the_release_has_its_heads_of_labels_and_the_proof_compared_them(made: Made):
    assert made.outcome.label_difference is not None
    assert made.outcome.label_difference < 1e-3
    assert json.loads((made.folder / "regression" / "config.json").read_text())["high"] == 5


def test_a_lineage_begun_with_such_a_release_has_its_prompts_and_needs_the_column(made: Made):
    begun = tiny_config("features.entity=locale", f"model.pretrained={made.folder}", "model.scratch=null")
    assert describe_encoder(begun, made.folder)[1].prompts == made.config.model.prompts
    without = tiny_config(f"model.pretrained={made.folder}", "model.scratch=null")
    with pytest.raises(ConfigError, match=r"de; .*features\.entity="):
        describe_encoder(without, made.folder)


def test_the_prompts_of_a_row_are_those_of_its_value_or_the_common_ones():
    prompts = Prompts.model_validate({"query": "q ", "by_entity": {"de": {"query": "f "}, "fr": {"item": "c "}}})
    rows = pa.table({"locale": ["de", "fr", None, "en"]})
    assert prompts_of(rows, "query", prompts, "locale") == ["f ", "q ", "q ", "q "]
    assert prompts_of(rows, "item", prompts, "locale") == ["", "c ", "", ""]
    assert prompts_of(rows, "query", prompts, None) == "q "


def test_batches_have_one_value_without_an_interaction(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=96)
    config = tiny_config(*SETTINGS)
    table = all_rows(store, [rows], config)
    pairs = make_pairs([table], build_parts(config, [table]), config)
    plan = make_plan(config, 0, pairs)
    locales = np.array(table["locale"].to_pylist())
    assert [len(set(locales[plan.rows(number)].tolist())) for number in range(len(plan))] == [1] * 6
