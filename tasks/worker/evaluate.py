"""evaluate: the challenger and, on the same rows, the champion, over the pooled holdout against items of the catalogue.

It only measures. The gates, in the control plane, judge whether the numbers are good enough.
"""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch

from configs.schema.config import Config
from infra.store.manifest import CorruptFolder, MissingFolder
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.evaluation import SliceMetrics
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.progress import report
from tasks.contracts.references import ModelRef
from tasks.data.holdout import read_sides
from tasks.data.items import CONTENT, TEXT
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID
from tasks.foundation.errors import DataError
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.catalogue.choose import NEAR, choose
from tasks.worker.compile import compile_cache
from tasks.worker.model.embed import EmbedSettings, embed, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tasks.worker.training.holdout import Holdout, Judged, KnownVectors, judge, make_holdout, side_of
from tasks.worker.training.pairs import pair_mask, used_columns
from tasks.worker.vectors.reuse import EarlierVectors, best

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

NEAREST = 10  # items of a query: as many as the metrics look at


class Contender(NamedTuple):
    """A model on the device, the settings that it embeds with, and the vectors that are released with it."""

    version: str
    parts: ModelParts
    settings: EmbedSettings
    released: EarlierVectors | None

    @property
    def features(self) -> list[str]:
        return [*self.parts.features.numeric, *self.parts.features.categorical]


def run(job: Job) -> EvaluateOutcome:
    """Measure both models; the workers share the work. Raises DataError: the spans have no holdout row."""
    inputs = job.spec.inputs
    assert isinstance(inputs, EvaluateInputs)
    config = job.config
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        with job.clock.phase("restoring"):
            compile_cache.reuse(accelerator, job.store, inputs.compiled)
            challenger = _contender(job, accelerator, inputs.challenger, None)
            champion = None
            if inputs.champion is not None:
                released = _released(job, accelerator, inputs.champion, inputs.champion_vectors)
                champion = _contender(job, accelerator, inputs.champion, released)
            held = _read_holdout(job, inputs, [*challenger.features, *(champion.features if champion else ())])
        corpus = _corpus(job, accelerator, inputs, held, challenger, champion)
        rows = held.filter(pc.is_in(held[ITEM_ID], value_set=corpus[ITEM_ID].combine_chunks()))
        if not rows.num_rows:
            raise DataError(f"all {held.num_rows} holdout rows are about deleted items; evaluate after more spans")
        holdout, judged, _ = _measure(job, accelerator, challenger, rows, corpus)
        metrics, read = None, 0
        if champion is not None:
            its_holdout, its_judged, read = _measure(job, accelerator, champion, rows, corpus)
            metrics = its_judged.metrics(its_holdout)
    return EvaluateOutcome(
        holdout_rows=rows.num_rows,
        corpus_items=corpus.num_rows,
        challenger=judged.metrics(holdout),
        champion=metrics,
        champion_version=inputs.champion.version if inputs.champion else None,
        slices=_slices(job, rows, holdout, judged),
        catalogue_items=inputs.catalogue.items,
        near_items=int(pc.sum(corpus[NEAR]).as_py()),
        rows_left_out=held.num_rows - rows.num_rows,
        champion_read=read,
        champion_embedded=corpus.num_rows - read if champion else 0,
    )


# --- what is measured ---------------------------------------------------------------------------------------------


def _contender(job: Job, accelerator: Accelerator, model: ModelRef, released: EarlierVectors | None) -> Contender:
    parts = load_parts(job.store, model.checkpoint)
    accelerator.to_device(parts.model)
    longest = parts.encoder_config.max_position_embeddings
    rungs = sorted({min(rung, longest) for rung in job.config.infer.token_rungs})
    settings = embed_settings(job.config, accelerator, job.config.infer.precision)
    return Contender(model.version, parts, dataclasses.replace(settings, rungs=rungs), released)


def _released(job: Job, accelerator: Accelerator, champion: ModelRef, prefix: str | None) -> EarlierVectors | None:
    """Return the released vectors of the champion; None if there are none that can be used, on any worker.

    Damaged ones do not stop the evaluation: the way out of a damaged release is the next one.
    """
    found = None
    if prefix is not None:
        try:
            found = EarlierVectors(job.store, prefix, champion.version)
            found.check(job.share)
        except (MissingFolder, CorruptFolder) as error:
            found = None
            print(f"the champion embeds all items again, since its released vectors can't be used: {error}", flush=True)
    usable = int(accelerator.sum(torch.tensor(int(found is not None))).item())
    return found if usable == job.rank.world else None


def _read_holdout(job: Job, inputs: EvaluateInputs, features: list[str]) -> pa.Table:
    """Return the holdout rows of all spans, with what both models need. The other rows are never in memory at once."""
    columns = [*used_columns(job.config), *features]
    rule = HoldoutRule.of(job.config.evaluate)
    tables = [sides.held for sides in read_sides(job.store, inputs.rows, rule, columns)]
    if not any(table.num_rows for table in tables):
        rows = sum(ref.rows for ref in inputs.rows)
        raise DataError(
            f"no holdout row among the {rows} rows up to span {job.spec.span.name}; evaluate after more spans, or "
            "begin a new lineage with a higher share: --set lineage=NAME --set evaluate.holdout_share=SHARE"
        )
    return pa.concat_tables(tables, promote_options="permissive")


# --- the items ----------------------------------------------------------------------------------------------------


def _corpus(
    job: Job,
    accelerator: Accelerator,
    inputs: EvaluateInputs,
    held: pa.Table,
    challenger: Contender,
    champion: Contender | None,
) -> pa.Table:
    """Return the whole catalogue, or of a large one the holdout's own items, the champion's nearest and a sample.

    The first worker chooses, and writes the items to the workspace for the others, and for people.
    """
    key = f"{job.spec.attempt_prefix}/corpus.parquet"
    others = job.config.evaluate.corpus_items
    features = [*challenger.features, *(champion.features if champion else ())]
    if not inputs.catalogue.items:
        raise DataError(f"{job.store.uri}/{inputs.catalogue.prefix} has no live item to be found")
    whole = inputs.catalogue.items <= others
    near = np.empty(0, dtype=np.uint64)
    if champion is not None and champion.released is not None and not whole:
        near = _near(job, accelerator, held, champion, champion.released)
    if job.rank.is_main:
        own = () if whole else sorted(set(held[ITEM_ID].to_pylist()))
        out = pa.BufferOutputStream()
        pq.write_table(choose(job.store, inputs.catalogue, own, near, others, features), out)
        job.store.write(key, out.getvalue().to_pybytes())
    accelerator.barrier()
    return pq.read_table(job.store.local(key))


def _near(
    job: Job, accelerator: Accelerator, held: pa.Table, champion: Contender, released: EarlierVectors
) -> np.ndarray:
    """Return the items that the champion finds nearest to some queries, as hashes of their ids, uint64."""
    queries = _some_queries(held, job.config, job.config.evaluate.corpus_items // 2 // NEAREST)
    tokens, features = side_of(queries, QUERY, champion.parts, job.config)
    vectors = embed(champion.parts.model, accelerator, tokens, features, champion.settings)
    scores, places = released.nearest(vectors, NEAREST, job.share)
    together = [_of_all_workers(accelerator, part) for part in (scores, places)]
    scores, places = best(together[0], together[1], NEAREST)
    return np.unique(places[np.isfinite(scores)]).view(np.uint64)


def _of_all_workers(accelerator: Accelerator, part: np.ndarray) -> np.ndarray:
    """Return the columns of all workers side by side, (rows, columns of all)."""
    rank = accelerator.rank
    parts = torch.zeros(rank.world, *part.shape, dtype=torch.from_numpy(part).dtype)
    parts[rank.index] = torch.from_numpy(part)
    return np.hstack(list(accelerator.sum(parts).numpy()))


def _some_queries(held: pa.Table, config: Config, count: int) -> pa.Table:
    """Return holdout rows whose item belongs to the query, at most `count`: those with the lowest hash of their id."""
    pairs = held.filter(pa.array(pair_mask(held, config.heads)))
    places = [hashlib.sha256(row_id.encode()).digest() for row_id in pairs[ROW_ID].to_pylist()]
    lowest = sorted(range(len(places)), key=places.__getitem__)[:count]
    return pairs.take(pa.array(sorted(lowest), pa.int64()))


# --- numbers ------------------------------------------------------------------------------------------------------


def _measure(
    job: Job, accelerator: Accelerator, model: Contender, rows: pa.Table, items: pa.Table
) -> tuple[Holdout, Judged, int]:
    """Return the ranks that a model gives the items of the rows, and how many items' vectors were released before."""
    known = None
    if model.released is not None:
        # Contents are comparable if they are made of the same features; otherwise the text alone is.
        same_features = set(model.features) == set(_catalogue_features(job))
        by, width = CONTENT if same_features else TEXT, model.parts.model.width
        which, vectors = map(torch.from_numpy, model.released.of_items(items, by, width, job.share))
        known = KnownVectors(accelerator.sum(which.int()).bool().numpy(), accelerator.sum(vectors).numpy())
    names = [ITEM if name == TEXT else name for name in items.column_names]
    holdout = make_holdout(rows, items.rename_columns(names), model.parts, job.config)
    judged = judge(
        model.parts,
        holdout,
        accelerator,
        model.settings,
        known,
        progress=(lambda done, total: report("evaluate", done, total, model.version)) if job.rank.is_main else None,
    )
    return holdout, judged, int(known.which.sum()) if known else 0


def _catalogue_features(job: Job) -> tuple[str, ...]:
    return (*job.config.features.numeric, *job.config.features.categorical)


def _slices(job: Job, held: pa.Table, holdout: Holdout, judged: Judged) -> tuple[SliceMetrics, ...]:
    found = []
    for column in job.config.evaluate.slices:
        values = np.asarray(held[column].cast(pa.string()).fill_null("(none)").to_pylist(), dtype=object)
        for value in sorted(set(values)):
            among = values == value
            if among.sum() >= job.config.evaluate.min_slice_rows:
                metrics = judged.metrics(holdout, among)
                found.append(SliceMetrics(column=column, value=value, rows=int(among.sum()), metrics=metrics))
    return tuple(found)
