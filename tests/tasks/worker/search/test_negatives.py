"""Hard negatives, by a model that was trained and released in this process; and training on them."""

import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.manifest import MANIFEST, read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import RowsRef
from tasks.contracts.usage import MinedNegatives
from tasks.data.label_columns import pair_mask
from tasks.data.rows import ITEM, ITEM_ID, QUERY, TEXT, normal_text
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker import train
from tasks.worker.catalogue.reuse import as_matrix
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.process.job import Job, Rank
from tasks.worker.search.negatives import Found, find_negatives, negative_arrays
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.holdout import encode_side
from tasks.worker.training.known_pairs import open_known
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import TrainingRows, lineage_keys, make_pairs
from tests.support.models.mined import CONFIG, SETTINGS, Made, make_mined
from tests.support.processes.ends import train_as_rank
from tests.support.processes.kills import Kill, train_and_die
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import FEATURES, all_rows, make_job, make_workspace, tensors_of, tiny_config


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_mined(tmp_path)


def find(
    made: Made, rank: Rank | None = None, config: Config = CONFIG, **changes: object
) -> tuple[Found, MinedNegatives]:
    inputs = made.inputs.model_copy(update=changes)
    job = make_job(made.store, config, inputs, rank=rank)
    with open_accelerator("cpu", job.rank) as accelerator:
        known = open_known(job, lineage_keys(job, inputs), accelerator.barrier)
        found = find_negatives(job, inputs, TrainingRows(made.store, inputs.rows, config), known, accelerator)
    assert found is not None
    return found


def training(made: Made, *refs: RowsRef) -> pa.Table:
    return pa.concat_tables(TrainingRows(made.store, refs, CONFIG))


def released_vectors(made: Made) -> tuple[list[str], list[str], np.ndarray]:
    """Ids, normalised texts and vectors of the release."""
    folder = made.store.path(made.release.vectors)
    table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("part-*.parquet")))
    texts = [normal_text(text) for text in table[TEXT].to_pylist()]
    return table[ITEM_ID].to_pylist(), texts, as_matrix(table["vector"])


def brute_force(made: Made) -> list[list[str]]:
    """The ids of the negatives of each training row, by products with all vectors."""
    parts = load_parts(made.store, made.release.model.checkpoint)
    rows, ids, texts, vectors = training(made, made.rows), *released_vectors(made)
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        settings = embed_settings(CONFIG, accelerator, "fp32")
        queries = embed(parts.model, accelerator, *encode_side(rows, "query", parts, CONFIG), settings)
        new = embed(parts.model, accelerator, *encode_side(rows, "item", parts, CONFIG), settings)
    answers: dict[str, set[str]] = {}
    for table in (all_rows(made.store, [made.rows], CONFIG), all_rows(made.store, [made.before], CONFIG)):
        belongs = table.filter(pa.array(pair_mask(table, CONFIG.heads)))
        for query, item, item_id in zip(*(belongs[name].to_pylist() for name in (QUERY, ITEM, ITEM_ID)), strict=True):
            answers.setdefault(normal_text(query), set()).update((normal_text(item), item_id))
    pairs, found = pair_mask(rows, CONFIG.heads), []
    for row, (query, item_id) in enumerate(zip(rows[QUERY].to_pylist(), rows[ITEM_ID].to_pylist(), strict=True)):
        own = vectors[ids.index(item_id)] if item_id in ids else new[row]
        scores, known = vectors @ queries[row], answers.get(normal_text(query), set())
        limit = 0.9 * float(queries[row] @ own)
        assert limit > 0, "else a share of it would be above it"
        near = [item for item in np.argsort(-scores).tolist() if scores[item] < limit]
        allowed = [ids[item] for item in near if ids[item] not in known and texts[item] not in known]
        found.append(allowed[:3] if pairs[row] else [])
    return found


def ids_of(found: Found) -> list[list[str]]:
    ids = found.items[ITEM_ID].to_pylist()
    return [[ids[number] for number in row if number >= 0] for row in found.of_row.tolist()]


def test_the_negatives_of_a_row_are_the_nearest_that_are_no_answer(made: Made):
    found, counts = find(made)
    wanted = brute_force(made)
    assert sum(map(len, wanted)) > 100
    assert ids_of(found) == wanted
    assert (counts.pairs, counts.negatives) == (sum(map(bool, wanted)), sum(map(len, wanted)))
    known = set(training(made, made.before)[ITEM_ID].to_pylist())
    assert any(item_id not in known for item_id in training(made, made.rows)[ITEM_ID].to_pylist()), "some are new"
    assert set(found.items.column_names) == {ITEM_ID, TEXT, "price", "locale", "gift"}


def test_they_are_mined_once_for_these_rows_release_and_settings(made: Made):
    first, counts = find(made)
    again, others = find(made)
    assert counts.embedded > 0
    assert others.embedded == 0
    assert np.array_equal(first.of_row, again.of_row)
    assert find(made, config=tiny_config(*SETTINGS, "heads.contrastive.negatives.max_share=0.8"))[1].embedded > 0
    assert find(made, rows=(made.before,), history=())[1].embedded > 0
    assert len({key.split("/")[1] for key in made.store.list("negatives")}) == 3


def test_damaged_ones_are_mined_again(made: Made):
    first, _ = find(made)
    folder = made.store.list("negatives")[0].rpartition("/")[0]
    made.store.path(f"{folder}/rows.parquet").write_bytes(b"damaged")
    again, counts = find(made)
    assert counts.embedded > 0
    assert np.array_equal(first.of_row, again.of_row)


@pytest.mark.parametrize("part", ["vectors", "checkpoint", "catalogue"])
def test_a_release_that_is_gone_ends_the_run(made: Made, part: str):
    folders = {
        "vectors": made.release.vectors,
        "checkpoint": made.release.model.checkpoint.prefix,
        "catalogue": made.release.catalogue.prefix,
    }
    made.store.delete(folders[part])
    with pytest.raises(StoreError, match=r"release 1.*negatives=null"):
        find(made)
    assert not made.store.list("negatives")


def test_vectors_that_were_replaced_after_the_release_end_the_run(made: Made):
    """Whoever writes others with a manifest of their own chooses what the model learns to push away."""
    folder = made.release.vectors
    manifest = read_manifest(made.store, folder)
    made.store.write(f"{folder}/{MANIFEST}", manifest.model_copy(update={"files": manifest.files[::-1]}).to_json())
    with pytest.raises(StoreError, match="that was released"):
        find(made)


def test_a_feature_that_only_the_released_model_knows_is_a_config_error(made: Made):
    others = [setting for setting in SETTINGS if not setting.startswith("features.numeric")]
    with pytest.raises(ConfigError, match="'price', which"):
        find(made, config=tiny_config(*others))


def find_as(rank: Rank, folder: str, inputs: TrainInputs) -> tuple[list[list[str]], int]:
    store = DirectoryStore(Path(folder))
    job = make_job(store, CONFIG, inputs, rank=rank)
    with open_accelerator("cpu", rank) as accelerator:
        known = open_known(job, lineage_keys(job, inputs), accelerator.barrier)
        found = find_negatives(job, inputs, TrainingRows(store, inputs.rows, CONFIG), known, accelerator)
    assert found is not None
    return ids_of(found[0]), found[1].embedded


def test_two_workers_find_what_one_finds(made: Made):
    # In two spans, so that each worker has a table of its own.
    inputs = made.inputs.model_copy(update={"rows": (made.before, made.rows), "history": ()})
    together = run_ranks(2, find_as, str(made.store.path("")), inputs)
    made.store.delete("negatives")
    assert together == [find_as(Rank(0, 1, 0), str(made.store.path("")), inputs)] * 2


def test_texts_are_read_as_far_as_the_release_was_made_for(made: Made):
    shorter = tiny_config(*SETTINGS, "infer.max_tokens=3")
    assert ids_of(find(made, config=shorter)[0]) == brute_force(made)


def test_an_item_that_a_row_has_too_becomes_the_same_input(tmp_path: Path):
    store, ref = make_workspace(tmp_path, rows=12)
    config = tiny_config(*FEATURES, "model.prompts={query: 'q ', item: 'this is: '}", "train.max_tokens.item=6")
    rows = all_rows(store, [ref], config)
    parts = build_parts(config, [rows])
    items = rows.rename_columns([TEXT if name == ITEM else name for name in rows.column_names])
    found = Found(np.zeros((12, 2), dtype=np.int32), items.select([ITEM_ID, TEXT, "price", "locale", "gift"]), {})
    pairs = make_pairs([rows], parts, config)
    negatives = negative_arrays(found, 15, parts, config)
    assert negatives is not None
    assert negatives.tokens.ids.tolist() == pairs.item.ids.tolist()
    assert negatives.tokens.offsets.tolist() == pairs.item.offsets.tolist()
    assert (negatives.features.numeric == pairs.item_features.numeric).all()
    assert (negatives.features.categorical == pairs.item_features.categorical).all()
    assert negatives.item_key.tolist() == pairs.item_key.tolist()
    assert negatives.text_key.tolist() == pairs.text_key.tolist()
    assert negatives.of_row[11:].tolist() == [[0, 0], [-1, -1], [-1, -1], [-1, -1]], "replayed rows have none"


# Every new state at once: mined items, a scale that is learnt, both directions.
BOTH_WAYS = tiny_config(*SETTINGS, "heads.contrastive.symmetric=true", "heads.contrastive.temperature=learnt")


def job_in(made: Made) -> Job:
    return make_job(made.store, BOTH_WAYS, made.inputs, run_key="mining")


def trained(folder: Path) -> tuple[Made, TrainOutcome]:
    made = make_mined(folder)
    return made, train.run(job_in(made))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Made, TrainOutcome]:
    return trained(tmp_path_factory.mktemp("unbroken"))


def test_a_killed_run_mines_once_and_ends_with_the_same_weights(tmp_path: Path, unbroken: tuple[Made, TrainOutcome]):
    made = make_mined(tmp_path)
    job = job_in(made)
    at = Kill("tasks.worker.training.loop:LoopRecorder.losses_if_due", 7)
    assert finish(start(train_and_die, job.spec, at)) == -signal.SIGKILL
    outcome = train.run(job)
    assert outcome.resumed_at_step in (8, 12), "the last checkpoint may not have been written"
    assert outcome.mined is not None
    assert outcome.mined.embedded == 0, "they were kept"
    assert outcome.checkpoint == unbroken[1].checkpoint, "the sum is over all bytes of weights, optimiser and state"


def test_two_workers_give_the_losses_of_one(tmp_path: Path, unbroken: tuple[Made, TrainOutcome]):
    made = make_mined(tmp_path)
    first, _ = run_ranks(2, train_as_rank, job_in(made))
    for ours, theirs in zip(first.losses, unbroken[1].losses, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4)
    scales = [tensors_of(where.store, end.checkpoint)["scale.logit"] for where, end in (unbroken, (made, first))]
    torch.testing.assert_close(scales[1], scales[0], rtol=1e-3, atol=1e-6)


def test_negatives_make_the_loss_harder_and_a_run_before_the_first_release_has_room_for_none(
    tmp_path: Path, unbroken: tuple[Made, TrainOutcome]
):
    outcome, made = unbroken[1], make_mined(tmp_path)
    inputs = made.inputs.model_copy(update={"mined": None})
    before = train.run(make_job(made.store, BOTH_WAYS, inputs, run_key="first"))
    assert before.mined is None
    assert outcome.mined is not None
    assert outcome.mined.pairs > 0
    assert before.tokens is not None
    assert outcome.tokens is not None
    assert before.tokens.computed < outcome.tokens.computed
    assert outcome.tokens.cut == 0
    assert outcome.losses[0].metrics["contrastive"] > 1.1 * before.losses[0].metrics["contrastive"]
