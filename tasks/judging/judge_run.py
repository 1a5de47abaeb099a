"""Judge a run by its rules, from the measurements of evaluate and release; it needs no worker."""

from collections.abc import Mapping, Sequence

import numpy as np

from configs.schema.config import Config
from configs.schema.gates import GateConfig
from infra.store.base import Conflict, Store
from infra.store.manifest import quarantine
from infra.store.records import settle
from tasks.contracts.evaluation import Role, Rules, SliceMetrics, Verdict
from tasks.contracts.outcomes import EvaluateOutcome, ReleaseOutcome
from tasks.contracts.references import QUERY_ALONE, HoldoutRule
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import OLD_VERDICTS, VERDICTS
from tasks.data.rows import ITEM, QUERY, group_columns
from tasks.foundation.clock import now
from tasks.foundation.nouns import plural
from tasks.judging.rivals import forward_score, judged_releases, seen_by
from tasks.quality import verdicts
from tasks.quality.common_items import CommonItems
from tasks.quality.comparisons import Measured
from tasks.quality.fall_parts import judge_falls, judge_parts
from tasks.quality.label_metrics import without_skill
from tasks.quality.row_metrics import area_by_chance
from tasks.quality.row_results import RowResults, read_row_results
from tasks.quality.selection import slices_of
from tasks.runs.results import Judgement, UnusableResult, change_judgement, read_judgement

# Suffixes of the release stage's metric names.
QUERIES_OF = " of the whole catalogue"
SHARED_BY = " of the items that both hold"


def rules_of(config: Config) -> Rules:
    """Return the rules of a configuration: its settings for judging runs."""
    return Rules(
        gates=config.evaluate.gates,
        slices=config.evaluate.slices,
        min_slice_rows=config.evaluate.min_slice_rows,
        release_gates=config.release.gates,
        champion_loss=config.evaluate.champion_loss,
        min_shared=config.evaluate.min_shared,
        label_loss=config.evaluate.label_loss,
    )


def judge_evaluation(store: Store, plan: RunPlan, outcome: EvaluateOutcome) -> Judgement:
    """Return the gates' verdicts on an evaluation: recorded ones if evaluation and rules are unchanged, else new.

    New verdicts are written; earlier ones stay on record under their number. A damaged record is moved to quarantine/.

    Raises:
        ConfigError: a gate or evaluate.slices names a column that the rows do not have.
        StoreError: the row results are not readable.
    """
    key, rules = VERDICTS.key(run=plan.run_key), rules_of(plan.config)
    try:
        kept = read_judgement(store, plan.run_key)
    except UnusableResult:
        quarantine(store, key)
        kept = None
    if kept is not None and kept.outcome.to_json() == outcome.to_json() and _same(kept.rules, rules):
        return kept
    rows = read_row_results(store, outcome.rows_key) if outcome.rows_key is not None else None
    counts = _class_counts(rows) if rows else np.zeros(2)
    found = judged_releases(store, outcome)
    measured = _measured(plan, outcome, rows, seen_by(found, plan.span))
    window = [span.name for span in plan.window]
    falls = judge_falls(rows, window, rules.champion_loss) if rows else {}
    limits = rules.champion_loss, rules.label_loss
    in_parts = judge_parts(rows, window, rules.slices, limits, rules.min_slice_rows) if rows else {}
    wrong = (*falls.items(), *((span, verdict) for span, some in in_parts.items() for verdict in some))
    judgement = Judgement(
        outcome=outcome,
        verdicts=(*verdicts.judge(measured, rules.gates), *(verdict for _, verdict in wrong)),
        number=kept.number + 1 if kept else 1,
        at=now(),
        rules=rules,
        forward=forward_score(found, outcome, measured),
        slices=_slices(rows, rules) if rows else (),
        larger_class=float(counts.max() / counts.sum()) if counts.any() else None,
        auc_by_chance=area_by_chance(int(counts[1]), int(counts[0])),
        without_skill=_without_skill(rows) if rows else {},
        wrong_spans=tuple(dict.fromkeys(span for span, verdict in wrong if verdict.refuses)),
    )
    if kept is not None:
        settle(store, OLD_VERDICTS.key(run=plan.run_key, number=kept.number), kept.to_json())

    def replaced(there: Judgement | None) -> Judgement:
        if there != kept:
            raise Conflict(f"{store.uri}/{key} was judged by another process meanwhile; judge the run again")
        return judgement

    change_judgement(store, plan.run_key, replaced)
    return judgement


def judge_release(
    exported: ReleaseOutcome, vectors: int, gates: Sequence[GateConfig], min_shared: float
) -> tuple[Verdict, ...]:
    """Return the verdicts of the release stage's gates; empty if it had no queries.

    Args:
        vectors: number of vectors that the queries searched.
        min_shared: the setting evaluate.min_shared.
    """
    if not exported.queries:
        return ()
    return tuple(
        verdict
        for gate in gates
        for verdict in verdicts.judge(_searched(exported, vectors, gate)._replace(min_shared=min_shared), [gate])
    )


def _searched(exported: ReleaseOutcome, vectors: int, gate: GateConfig) -> Measured:
    """Return the metrics for a gate of the release stage: the release's, or both models' on their shared items."""
    shared = exported.shared
    if gate.baseline == "none" or shared is None:
        metrics: dict[Role, Mapping[str, float]] = {Role.challenger: exported.metrics}
        among = f"among all {plural(vectors, 'vector')}"
        return Measured(metrics, corpus=among, many=exported.queries, called="queries", suffix=QUERIES_OF)
    metrics = {Role.challenger: shared.metrics_after, Role.champion: shared.metrics_before}
    common = {Role.champion: CommonItems(shared.items, vectors)}
    return Measured(metrics, shared=common, many=shared.queries, called="queries", suffix=SHARED_BY)


def _same(then: Rules, rules: Rules) -> bool:
    """Return True if the rules are equal, ignoring the rules of the release stage."""
    return then.model_copy(update={"release_gates": rules.release_gates}) == rules


def _measured(plan: RunPlan, outcome: EvaluateOutcome, rows: RowResults | None, seen_by: frozenset[Role]) -> Measured:
    metrics: dict[Role, Mapping[str, float]] = {
        each.role: {**each.metrics, **each.vectors} for each in outcome.measured
    }
    metrics.setdefault(Role.challenger, outcome.challenger)
    if outcome.champion is not None:
        metrics.setdefault(Role.champion, outcome.champion)
    return Measured(
        metrics,
        rows,
        corpus=_corpus(outcome),
        whole=f"among all {plural(outcome.whole_items, 'item')}" if outcome.whole_items else "",
        shared={role: CommonItems(items, outcome.catalogue_items) for role, items in outcome.shared_items.items()},
        min_shared=plan.config.evaluate.min_shared,
        many=outcome.holdout_rows,
        sampled_from=outcome.sampled_from,
        newest=plan.span.name,
        seen_by=seen_by,
        min_slice_rows=plan.config.evaluate.min_slice_rows,
        unseen_alone=HoldoutRule.of(plan.config.evaluate).group == QUERY_ALONE,
        grouped=_grouped(plan.config.evaluate.group),
    )


def _corpus(outcome: EvaluateOutcome) -> str:
    sampled = outcome.whole_items is not None or outcome.corpus_items < outcome.catalogue_items
    return f"among {plural(outcome.corpus_items, 'item')}{' drawn without regard to a model' if sampled else ''}"


def _grouped(group: str | None) -> str:
    """Return the name of the groups of row results, for an `evaluate.group`: a column, or `query`."""
    return "query" if group is None or {ITEM, QUERY} & set(group_columns(group)) else group


def _slices(rows: RowResults, rules: Rules) -> tuple[SliceMetrics, ...]:
    return tuple(
        SliceMetrics(
            column=column,
            value=part.where,
            rows=int(part.rows.sum()),
            metrics=rows.compared(Role.challenger, part.rows),
            champion=rows.compared(Role.champion, part.rows) if Role.champion in rows.ranks else None,
        )
        for column in rules.slices
        for part in slices_of(rows, column)
        if part.rows.sum() >= rules.min_slice_rows
    )


def _without_skill(rows: RowResults) -> dict[str, float]:
    return without_skill({head: truth[~rows.golden] for head, truth in rows.labels.items()})


def _class_counts(rows: RowResults) -> np.ndarray:
    """Return the number of holdout rows of each class, int64 (2,)."""
    return np.bincount(rows.label_class[(rows.label_class >= 0) & ~rows.golden], minlength=2)
