"""evaluate: measures the challenger, the champion and other models on the same rows of holdout and golden set.

It only measures and keeps the results of each row; the gates, in the control plane, judge them.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from tasks.contracts.evaluation import COMPETITORS, QUERY_KEY, Measurement, Role
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.workspace import MEASURED_ROWS
from tasks.data.rows import ITEM_ID, TEXT
from tasks.foundation.errors import DataError
from tasks.quality.by_part import metrics_by_queries, metrics_by_span
from tasks.quality.row_results import RowResults, row_results
from tasks.quality.vector_metrics import Answers, compatibility_metrics
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.evaluation.measure import ModelResults, WholeRanks, columns_of, embed_changed, measure, rank_in_whole
from tasks.worker.evaluation.models import LoadedModel, ModelSpec, feature_names, list_models, open_model
from tasks.worker.evaluation.rows_and_items import (
    MeasuredRows,
    choose_corpus,
    is_whole,
    known_pairs,
    live_relevant_items,
    read_holdout,
    relevant_items,
    with_golden_set,
    with_trained,
)
from tasks.worker.model.relevant import Relevant, RelevantTexts, hash_texts
from tasks.worker.process.job import Job
from tasks.worker.training import compile_cache
from tasks.worker.training.holdout import find_places

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class EvaluationData(NamedTuple):
    """Rows and items for the measurement of all models."""

    rows: MeasuredRows
    corpus: pa.Table
    pairs: pa.Table  # from `known_pairs`
    relevant: Relevant
    left_out: int  # holdout rows about deleted items


class EvaluatedModel(NamedTuple):
    """One model and its results."""

    spec: ModelSpec
    measured: ModelResults
    again: int = 0  # items of the catalogue that it embedded again, since it reads them otherwise than in its release


def run(job: Job) -> EvaluateOutcome:
    """Measure each model once; the workers share the work. Raises DataError: the spans have no holdout row."""
    inputs = job.spec.inputs
    assert isinstance(inputs, EvaluateInputs)
    config, specs = job.config, list_models(inputs)
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        with job.clock.phase("restoring"):
            compile_cache.reuse(accelerator, job.store, inputs.compiled)
            model = open_model(job, accelerator, specs[0], None)
            assert model is not None, "only new weights may not be there"
            data = _data(job, accelerator, inputs, specs)
        with job.clock.phase("productive"), job.scratch() as folder:
            found = list(_measure_all(job, accelerator, specs, model, data, folder))
            whole = _whole(job, accelerator, inputs, data, found)
    with job.clock.phase("productive"):
        return _outcome(job, inputs, data, found, whole)


def _outcome(
    job: Job,
    inputs: EvaluateInputs,
    data: EvaluationData,
    found: Sequence[EvaluatedModel],
    whole: WholeRanks | None,
) -> EvaluateOutcome:
    results = _keep(job, data, found, whole)
    champion = next((each for each in found if each.spec.is_champion), None)
    measured = int((~results.golden).sum())
    return EvaluateOutcome(
        holdout_rows=measured,
        holdout_pairs=int((~results.golden & results.pair).sum()),
        holdout_there=data.rows.there,
        corpus_items=data.corpus.num_rows,
        challenger=results.compared(Role.challenger),
        champion=results.compared(Role.champion) if champion else None,
        by_queries=metrics_by_queries(results),
        champion_version=champion.spec.version if champion else None,
        catalogue_items=inputs.catalogue.items,
        whole_items=whole.items if whole else None,
        shared_items=_shared_items(found, whole) if whole else {},
        embedded_again={role: each.again for each in found if each.again for role in each.spec.roles},
        rows_left_out=data.left_out,
        champion_read=champion.measured.read if champion else 0,
        champion_embedded=data.corpus.num_rows - champion.measured.read if champion else 0,
        measured=_measurements(found, results),
        rows_key=MEASURED_ROWS.of(job.spec),
        spans=metrics_by_span(results, [ref.span.name for ref in inputs.rows]),
        golden_rows=int(results.golden.sum()),
        golden_trained=data.rows.golden_trained,
        golden={role: results.metrics(role, results.golden) for role in results.roles} if results.golden.any() else {},
    )


def _data(job: Job, accelerator: Accelerator, inputs: EvaluateInputs, specs: Sequence[ModelSpec]) -> EvaluationData:
    """Return the rows, the items, and each row's relevant items."""
    features = feature_names(job, specs)
    rows = with_golden_set(job, read_holdout(job, inputs, features), inputs.golden)
    corpus = choose_corpus(job, accelerator, inputs, rows, features)
    live = rows.where(pc.is_in(rows.table[ITEM_ID], value_set=corpus[ITEM_ID].combine_chunks()))
    held, left = pc.sum(rows.holdout).as_py(), pc.sum(live.holdout).as_py() or 0
    if not left:
        raise DataError(f"all {held} holdout rows are about deleted items; evaluate after more spans")
    pairs = known_pairs(job, accelerator, live)
    return EvaluationData(with_trained(live, pairs), corpus, pairs, relevant_items(live, pairs, corpus), held - left)


def _measure_all(
    job: Job,
    accelerator: Accelerator,
    specs: Sequence[ModelSpec],
    first: LoadedModel,
    data: EvaluationData,
    folder: Path,
) -> Iterator[EvaluatedModel]:
    """Yield each model's results; one model is on the device, besides the challenger while that is copied.

    Args:
        folder: for the vectors of items that a released model embeds again; each model gets a folder in it.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, EvaluateInputs)
    meets = inputs.challenger_vectors is not None and not is_whole(job, inputs)
    model: LoadedModel | None = first
    champion: Answers | None = None
    challenger = None
    for number, spec in enumerate(specs):
        if number:
            with job.clock.phase("restoring"):
                model = open_model(job, accelerator, spec, challenger)
        if model is None:
            continue
        measured, answers = measure(job, accelerator, model, data.rows, data.corpus, data.relevant)
        challenger = model.parts if Role.challenger in spec.roles else None  # the next, untrained model is a copy
        if challenger is not None and champion is not None:
            agreement = compatibility_metrics(answers, champion)
            measured = measured._replace(vectors=measured.vectors | agreement)
        champion = answers if spec.is_champion else None
        if meets and spec.meets_challenger and measured.side is not None:
            (own := folder / str(number)).mkdir()
            again = embed_changed(job, accelerator, model, inputs.catalogue, own)
            if again and job.rank.is_main:
                print(
                    f"the {' and '.join(spec.roles)} embedded {again:,} changed items of the catalogue again",
                    flush=True,
                )
            yield EvaluatedModel(spec, measured._replace(side=measured.side._replace(again=own)), again)
        else:
            yield EvaluatedModel(spec, measured)


def _whole(
    job: Job, accelerator: Accelerator, inputs: EvaluateInputs, data: EvaluationData, found: Sequence[EvaluatedModel]
) -> WholeRanks | None:
    """Return the ranks among all items of the catalogue; None if the corpus holds them all.

    The challenger and each released model are compared on their common items, so neither has easier competitors.
    """
    mine = next(each.measured.side for each in found if each.spec.is_challenger)
    if mine is None or is_whole(job, inputs):
        return None
    items = live_relevant_items(job, accelerator, inputs, data.pairs)
    text_of = dict(zip(items[ITEM_ID].to_pylist(), hash_texts(items[TEXT].to_pylist()).tolist(), strict=True))
    known = [text_of.get(item) for item in data.pairs[ITEM_ID].to_pylist()]
    there = np.array([text is not None for text in known], dtype=bool)
    texts = np.array([text for text in known if text is not None], dtype=np.uint64)
    own = hash_texts(data.corpus[TEXT].to_pylist())[find_places(data.corpus, data.rows.table)]
    right = RelevantTexts.of(
        data.rows.facts[QUERY_KEY].to_numpy(), own, (data.pairs[QUERY_KEY].to_numpy()[there], texts)
    )
    others = {
        each.spec.version: each.measured.side
        for each in found
        if each.measured.side is not None and each.spec.meets_challenger
    }
    return rank_in_whole(job, accelerator, mine, others, inputs.catalogue.partitions, right)


def _shared_items(found: Sequence[EvaluatedModel], whole: WholeRanks) -> dict[Role, int]:
    return {
        role: whole.shared[each.spec.version].items
        for each in found
        if each.spec.version in whole.shared
        for role in each.spec.roles
    }


def _keep(job: Job, data: EvaluationData, found: Sequence[EvaluatedModel], whole: WholeRanks | None) -> RowResults:
    """Return the results of each row; the first worker writes them."""
    competitors = data.relevant.competitors(find_places(data.corpus, data.rows.table))
    table = data.rows.facts.append_column(COMPETITORS, pa.array(competitors))
    for spec, measured, _ in found:
        for role in spec.roles:
            columns = columns_of(role, measured)
            if whole is not None:
                columns |= whole.columns_of(role, spec.version)
            for name, column in columns.items():
                table = table.append_column(name, column)
    if job.rank.is_main:
        out = io.BytesIO()
        pq.write_table(table, out)
        job.store.write(MEASURED_ROWS.of(job.spec), out.getvalue())
    return row_results(table)


def _measurements(found: Sequence[EvaluatedModel], results: RowResults) -> tuple[Measurement, ...]:
    """Return the metrics of each role, in the order of `Role`."""
    numbers = [
        Measurement(
            role=role,
            version=spec.version,
            release=release,
            metrics=results.metrics(role),
            vectors=measured.vectors,
            recall_by_width=measured.recall_by_width,
        )
        for spec, measured, _ in found
        for role, release in spec.roles.items()
    ]
    return tuple(sorted(numbers, key=lambda each: list(Role).index(each.role)))
