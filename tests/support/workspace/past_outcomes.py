"""The outcomes of the stages of a made-up past: plausible numbers, the same each time."""

from __future__ import annotations

import math
import random

from tasks.contracts.evaluation import Answer, ForwardNumbers, ForwardScore, Role, SliceMetrics, Verdict
from tasks.contracts.outcomes import (
    Check,
    EvaluateOutcome,
    HealthOutcome,
    InferOutcome,
    Outcome,
    ReleaseOutcome,
    TrainOutcome,
    ValidateOutcome,
    WarmupOutcome,
)
from tasks.contracts.references import CatalogueRef, CheckpointRef, CompileRef, CurvePoint, RowsRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.usage import GraphUse, NewGraph, ShapeTiming
from tests.support.measures.results import by_queries
from tests.support.workspace.specs import MADE_BY

VECTORS = 184_210


def verdicts(outcome: EvaluateOutcome, rejected: bool) -> tuple[Verdict, ...]:
    """What the gates would say, without asking great-expectations, which takes a fifth of a second for each."""
    recall, mrr, auc = (outcome.challenger[name] for name in ("recall@10", "mrr@10", "auc"))
    champion = outcome.champion or {}
    first: Answer | None = None if not champion else "fail" if rejected else "pass"
    than = f"the champion's {champion.get('recall@10', 0.0):.4f}"
    compared = f"recall@10 {recall:.4f} against {than}; allowed is a drop of 0.01."
    return (
        Verdict(metric="recall@10", severity="critical", answer=first, value=recall, baseline=champion.get("recall@10"),
                sentence=compared if champion else f"recall@10 {recall:.4f}; no champion yet to compare with."),
        Verdict(metric="auc", severity="critical", answer="pass", value=auc, baseline=None,
                sentence=f"auc {auc:.4f}; at least 0.7000 is required."),
        Verdict(metric="mrr@10", severity="warning", answer=first, value=mrr, baseline=champion.get("mrr@10"),
                sentence=f"mrr@10 {mrr:.4f} against the champion's; allowed is a drop of 0.005."),
    )  # fmt: skip


def quality(number: int) -> dict[str, float]:
    """A model that gets better fast, then slowly, with a little noise."""
    noise = random.Random(1000 + number).uniform(-0.006, 0.006)
    recall = 0.52 - 0.2 * math.exp(-number / 9) + noise
    return {
        "recall@1": recall * 0.45, "recall@10": recall, "mrr@10": recall * 0.61, "ndcg@10": recall * 0.7,
        "accuracy": 0.86 + noise, "macro_f1": 0.81 + noise, "auc": 0.88 + noise / 2,
    }  # fmt: skip


def forward(span: str, number: int, released: int) -> ForwardScore | None:
    """What the release that served was worth on the span; None before there was one."""
    if not released:
        return None
    recall = quality(number - 1)["recall@10"] - 0.03
    before = quality(number - 2)["recall@10"] - 0.05 if released > 1 else None
    gain = recall - before if before is not None else None
    return ForwardScore(
        release=released, span=span, rows=412, metric="recall@10", value=recall,
        previous=released - 1 or None, previous_value=before,
        low=gain - 0.021 if gain is not None else None, high=gain + 0.021 if gain is not None else None,
        untrained=0.27, challenger=quality(number)["recall@10"],
        unseen=_forward_part(recall - 0.04, before, gain), seen=_forward_part(recall + 0.04, before, gain),
    )  # fmt: skip


def _forward_part(recall: float, before: float | None, gain: float | None) -> ForwardNumbers:
    bounds = (gain - 0.03, gain + 0.03) if gain is not None else (None, None)
    return ForwardNumbers(
        rows=206, value=recall, previous_value=before, low=bounds[0], high=bounds[1], untrained=0.27, challenger=0.7
    )


def slices(outcome: EvaluateOutcome) -> tuple[SliceMetrics, ...]:
    return tuple(
        SliceMetrics(column="locale", value=value, rows=rows, metrics=outcome.challenger)
        for value, rows in (("de", 1204), ("en", 3100), ("ja", 508))
    )


def outcome_of(plan: RunPlan, stage: Stage, rows: RowsRef, number: int, rejected: bool) -> Outcome:
    first, last = number * 400, number * 400 + 400
    metrics = quality(number)
    match stage:
        case Stage.validate:
            drift = Check(
                name="label drift",
                passed=number % 5 != 3,
                severity="warning",
                observed=0.3,
                sentence="the labels drifted by 0.30 from the spans before; 0.25 is allowed.",
            )
            enough = Check(
                name="rows",
                passed=True,
                severity="critical",
                observed=48_120.0,
                sentence="48,120 clean rows; at least 32 are required.",
            )
            return ValidateOutcome(
                rows=(rows,),
                rows_in=48_920,
                rows_clean=48_120,
                rows_quarantined=800,
                reasons={"empty query": 612, "label out of bounds": 188},
                quarantine=None,
                checks=(enough, drift),
                catalogue=catalogue(number),
            )
        case Stage.health:
            return HealthOutcome(
                device="xla",
                matmul_gflops=(91.0,) * 64,
                slowest_to_median=1.04,
                free_memory_gib=(12.5,) * 64,
                free_disk_gib=410.0,
                collectives={"all-reduce GB/s": 34.1, "latency us": 61.0},
                checks=(
                    Check(
                        name="known answer",
                        passed=True,
                        severity="critical",
                        observed=0.0,
                        sentence="64 of 64 workers gave the known product.",
                    ),
                ),
            )
        case Stage.warmup:
            compiled = CompileRef(key="c0ffee", graphs=26, seconds=612.0)
            return WarmupOutcome(
                device="xla",
                shapes=(ShapeTiming(sequences=34, tokens=128, first_step_seconds=41.0, step_seconds=0.21),),
                validation_seconds=4.1,
                checkpoint_seconds=2.2,
                peak_memory_gib=11.8,
                compiled=compiled,
                graphs=_graphs(()),
                trial_losses=(2.5,),
                trial_metrics=metrics,
                environment={"NEURON_CC_FLAGS": "--model-type transformer -O1"},
            )
        case Stage.train:
            falling = [
                (first + step, 1.2 + 2.4 * math.exp(-(step + number * 60) / 260) + 0.05 * math.sin(step))
                for step in range(5, 401, 5)
            ]
            return TrainOutcome(
                checkpoint=CheckpointRef(
                    prefix=f"lineages/main/step-{last:08d}", step=last, sha256=f"{number + 1:064x}"
                ),
                model_version=f"main-{last:08d}",
                first_step=first,
                last_step=last,
                resumed_at_step=first + 188 if not number % 7 else None,
                rows_trained=43_308,
                pairs_per_second=1180.0 + 40 * math.sin(number),
                precision="bf16",
                losses=tuple(
                    CurvePoint(
                        step=step, metrics={"loss": loss, "contrastive": loss * 0.85, "classification": loss * 0.75}
                    )
                    for step, loss in falling
                ),
                curve=tuple(
                    CurvePoint(
                        step=first + step,
                        metrics={name: value * (1 - 0.08 * math.exp(-step / 120)) for name, value in metrics.items()},
                    )
                    for step in range(0, 401, 20)
                ),
                graphs=_graphs(
                    (NewGraph(name="12823916788366823", where="step 12, 24 x 40 tokens", seconds=1.649),)
                    if number % 9 == 4
                    else ()
                ),
                environment={"NEURON_RT_EXEC_TIMEOUT": "600", "XLA_USE_BF16": "0"},
            )
        case Stage.evaluate:
            champion = quality(number - 1) if number else None
            if rejected:
                metrics = metrics | {"recall@10": metrics["recall@10"] - 0.06}
            return EvaluateOutcome(
                holdout_rows=4_812,
                corpus_items=21_004,
                challenger=metrics,
                champion=champion,
                by_queries={Role.challenger: by_queries(metrics)}
                | ({Role.champion: by_queries(champion)} if champion else {}),
                champion_version=f"main-{first:08d}" if champion else None,
            )
        case Stage.infer:
            return InferOutcome(
                prefix=f"vectors/main-{last:08d}/{plan.span.name}",
                vectors=VECTORS,
                width=384,
                shards=45,
                shards_reused=0,
                texts_per_second=96.0 * 64 + 90 * math.cos(number),
                catalogue=catalogue(number),
                ids_sha256="0",
            )
        case _:
            return ReleaseOutcome(
                model=f"models/main-{last:08d}", model_sha256="0", min_cosine=0.99998, probed=64, **MADE_BY
            )


def catalogue(number: int) -> CatalogueRef:
    return CatalogueRef(prefix=f"catalogue/{number:016x}", items=VECTORS, partitions=64, sha256=f"{number:064x}")


def _graphs(new: tuple[NewGraph, ...]) -> GraphUse:
    return GraphUse(
        hits=26, misses=len(new), compile_seconds=12.0, seconds_saved=600.0, readable=True, compiled=(), new=new
    )
