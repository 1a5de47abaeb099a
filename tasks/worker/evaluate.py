"""evaluate: the challenger and, on the same rows, the champion, over the pooled holdout against every known item.

It only measures. The gates, in the control plane, judge whether the numbers are good enough.
"""

import dataclasses

import numpy as np
import pyarrow as pa

from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome, SliceMetrics
from tasks.contracts.progress import report
from tasks.contracts.references import ModelRef
from tasks.foundation.errors import DataError
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.compile import compile_cache
from tasks.worker.model.embed import embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.holdout import Holdout, Judged, judge, make_holdout
from tasks.worker.training.pairs import load_rows, split_holdout


def run(job: Job) -> EvaluateOutcome:
    """Measure both models. Raises DataError: the spans have no holdout row."""
    inputs = job.spec.inputs
    assert isinstance(inputs, EvaluateInputs)
    config = job.config
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        compile_cache.reuse(accelerator, job.store, inputs.compiled)
        held, holdout, judged = _measure(job, accelerator, inputs, inputs.challenger)
        champion = None
        if inputs.champion is not None:
            _, its_holdout, its_judged = _measure(job, accelerator, inputs, inputs.champion)
            champion = its_judged.metrics(its_holdout)
    return EvaluateOutcome(
        holdout_rows=held.num_rows,
        corpus_items=len(holdout.corpus),
        challenger=judged.metrics(holdout),
        champion=champion,
        champion_version=inputs.champion.version if inputs.champion else None,
        slices=_slices(job, held, holdout, judged),
    )


def _measure(
    job: Job, accelerator: Accelerator, inputs: EvaluateInputs, model: ModelRef
) -> tuple[pa.Table, Holdout, Judged]:
    """Return the holdout rows, and the ranks that a model of any shape and features gives them."""
    infer = job.config.infer
    with job.clock.phase("restoring"):
        parts = load_parts(job.store, model.checkpoint)
        accelerator.to_device(parts.model)
        rows = load_rows(job.store, inputs.rows, job.config, [*parts.features.numeric, *parts.features.categorical])
    _, held = split_holdout(rows, job.config.evaluate.holdout_share)
    if not held.num_rows:
        raise DataError(
            f"no holdout row among the {rows.num_rows} rows up to span {job.spec.span.name}; "
            "raise evaluate.holdout_share or evaluate after more spans"
        )
    longest = parts.encoder_config.max_position_embeddings
    rungs = sorted({min(rung, longest) for rung in infer.token_rungs})
    holdout = make_holdout(held, rows, parts, job.config)
    judged = judge(
        parts,
        holdout,
        accelerator,
        dataclasses.replace(embed_settings(job.config, accelerator, infer.precision), rungs=rungs),
        progress=(lambda done, total: report("evaluate", done, total, model.version)) if job.rank.is_main else None,
    )
    return held, holdout, judged


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
