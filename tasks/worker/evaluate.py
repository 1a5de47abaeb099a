"""evaluate: the challenger and, on the same rows, the champion and others, over the holdout and the golden set.

It only measures. The answers to each row are kept, and the gates, in the control plane, judge them.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from tasks.contracts.evaluation import Measurement, Role
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.data.rows import ITEM_ID
from tasks.foundation.errors import DataError
from tasks.measures.by_span import metrics_by_span
from tasks.measures.row_results import RowResults, row_results
from tasks.measures.vector_metrics import Answers, compatibility_metrics
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.catalogue.choose import NEAR
from tasks.worker.compile import compile_cache
from tasks.worker.evaluation.contenders import Contender, Entrant, entrants_of, feature_names, open_entrant
from tasks.worker.evaluation.corpus import choose_corpus, relevant_items
from tasks.worker.evaluation.measure import Measured, columns_of, measure
from tasks.worker.evaluation.rows import MeasuredRows, read_holdout, with_golden_set
from tasks.worker.evaluation.sample import interval_of
from tasks.worker.process.job import Job
from tasks.worker.ranking.relevant import Relevant

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class Field(NamedTuple):
    """What all models are measured on."""

    rows: MeasuredRows
    corpus: pa.Table
    relevant: Relevant
    left_out: int  # holdout rows about items that are deleted


class Found(NamedTuple):
    """A model with its answers."""

    entrant: Entrant
    measured: Measured


def run(job: Job) -> EvaluateOutcome:
    """Measure each model once; the workers share the work. Raises DataError: the spans have no holdout row."""
    inputs = job.spec.inputs
    assert isinstance(inputs, EvaluateInputs)
    config, entrants = job.config, entrants_of(inputs)
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        with job.clock.phase("restoring"):
            compile_cache.reuse(accelerator, job.store, inputs.compiled)
            model = open_entrant(job, accelerator, entrants[0], None)
        assert model is not None, "only new weights may not be there"
        field = _field(job, accelerator, inputs, entrants, model)
        found = list(_measure_all(job, accelerator, entrants, model, field))
    results = _keep(job, field, found)
    champion = next((each for each in found if each.entrant.is_champion), None)
    measured = int((~results.golden).sum())
    sampled = measured + field.left_out < field.rows.there
    return EvaluateOutcome(
        holdout_rows=measured,
        holdout_there=field.rows.there,
        interval=interval_of(results) if sampled else None,
        corpus_items=field.corpus.num_rows,
        challenger=results.metrics(Role.challenger),
        champion=results.metrics(Role.champion) if champion else None,
        champion_version=champion.entrant.version if champion else None,
        slices=(),
        catalogue_items=inputs.catalogue.items,
        near_items=int(pc.sum(field.corpus[NEAR]).as_py()),
        rows_left_out=field.left_out,
        champion_read=champion.measured.read if champion else 0,
        champion_embedded=field.corpus.num_rows - champion.measured.read if champion else 0,
        measured=_measurements(found, results),
        rows_key=_rows_key(job),
        spans=metrics_by_span(results, [ref.span.name for ref in inputs.rows]),
        golden_rows=int(results.golden.sum()),
        golden_trained=field.rows.golden_trained,
        golden={role: results.metrics(role, results.golden) for role in results.roles} if results.golden.any() else {},
    )


def _field(
    job: Job, accelerator: Accelerator, inputs: EvaluateInputs, entrants: Sequence[Entrant], first: Contender
) -> Field:
    """Return rows, items, and which items are as right as others; `first` is the model of the first entrant."""
    features = feature_names(job, entrants)
    with job.clock.phase("restoring"):
        rows = with_golden_set(job, read_holdout(job, inputs, features), inputs)
    corpus = choose_corpus(job, accelerator, inputs, rows, first if entrants[0].is_champion else None, features)
    live = rows.where(pc.is_in(rows.table[ITEM_ID], value_set=corpus[ITEM_ID].combine_chunks()))
    held, left = pc.sum(rows.holdout).as_py(), pc.sum(live.holdout).as_py() or 0
    if not left:
        raise DataError(f"all {held} holdout rows are about deleted items; evaluate after more spans")
    return Field(live, corpus, relevant_items(job, accelerator, inputs, live, corpus), held - left)


def _measure_all(
    job: Job, accelerator: Accelerator, entrants: Sequence[Entrant], first: Contender, field: Field
) -> Iterator[Found]:
    """Yield each model's answers; one model at a time is on the device, and the challenger while it is copied."""
    model: Contender | None = first
    champion: Answers | None = None
    challenger = None
    for number, entrant in enumerate(entrants):
        if number:
            with job.clock.phase("restoring"):
                model = open_entrant(job, accelerator, entrant, challenger)
        if model is None:
            continue
        measured, answers = measure(job, accelerator, model, field.rows, field.corpus, field.relevant)
        challenger = model.parts if Role.challenger in entrant.roles else None  # of which the next one is a copy
        if challenger is not None and champion is not None:
            agreement = compatibility_metrics(answers, champion)
            measured = measured._replace(vectors=measured.vectors | agreement)
        champion = answers if entrant.is_champion else None
        yield Found(entrant, measured)


def _rows_key(job: Job) -> str:
    return f"{job.spec.attempt_prefix}/rows.parquet"


def _keep(job: Job, field: Field, found: Sequence[Found]) -> RowResults:
    """Return the answers to each row; the first worker writes them."""
    table = field.rows.facts
    for entrant, measured in found:
        for role in entrant.roles:
            for name, column in columns_of(role, measured).items():
                table = table.append_column(name, column)
    if job.rank.is_main:
        out = io.BytesIO()
        pq.write_table(table, out)
        job.store.write(_rows_key(job), out.getvalue())
    return row_results(table)


def _measurements(found: Sequence[Found], results: RowResults) -> tuple[Measurement, ...]:
    """Return the numbers of each role, in the order of `Role`."""
    numbers = [
        Measurement(
            role=role,
            version=entrant.version,
            release=release,
            metrics=results.metrics(role),
            vectors=measured.vectors,
            recall_by_width=measured.recall_by_width,
        )
        for entrant, measured in found
        for role, release in entrant.roles.items()
    ]
    return tuple(sorted(numbers, key=lambda each: list(Role).index(each.role)))
