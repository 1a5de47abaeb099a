"""Compare the models of runs, row by row: metrics with intervals, slices, and the queries that won and lost most.

Two models are compared on the rows of one evaluation if it measured both; else on the rows that both runs hold out.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from configs.load import leaves
from configs.schema.gates import METRICS, Family
from configs.schema.training import TrainConfig, rate_in_run
from infra.store.base import Store
from tasks.contracts.comparison import (
    RATE,
    AnyQueries,
    ComparedMetric,
    ComparedPair,
    ComparedQuery,
    ComparedRun,
    ComparedSetting,
    ComparedSlice,
    Comparison,
)
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import EvaluateOutcome, TrainOutcome, ValidateOutcome
from tasks.contracts.references import CurvePoint
from tasks.contracts.stages import Stage
from tasks.data.holdout import held_texts
from tasks.foundation.errors import StoreError
from tasks.foundation.nouns import plural
from tasks.judging.rivals import ranking_metric
from tasks.quality.common_items import CommonItems
from tasks.quality.intervals import Term, error_of
from tasks.quality.row_results import RowResults, read_row_results
from tasks.quality.selection import Answers, counting, measure, row_values, slices_of, truths
from tasks.runs import catalogues
from tasks.runs.metric_by_cost import RunCosts, costs_to_target
from tasks.runs.run import Run


class Evaluated(NamedTuple):
    """A run with the answers of each model that its evaluation measured, or of its model when training ended."""

    label: str
    run: Run
    outcome: EvaluateOutcome | None  # None: the training gave the answers
    rows: RowResults
    roles: dict[str, Role]  # by model version
    metrics: Mapping[str, float]  # the challenger's
    items: int  # candidates for the challenger's ranks without a baseline

    @property
    def version(self) -> str | None:
        return next((version for version, role in self.roles.items() if role is Role.challenger), None)


class ComparedModel(NamedTuple):
    """One model's answers to the common rows."""

    rows: RowResults
    role: Role
    met: Role | None  # the model that it is compared with in the same file
    at: np.ndarray  # int64 (common rows,): their places in the file

    def values(self, metric: str) -> np.ndarray:
        """Return `Answers.values` of this model. Raises KeyError: it was not measured."""
        return row_values(self.rows, metric, self.role, self.met)[self.at]

    def counts(self, metric: str) -> np.ndarray:
        return counting(self.rows, metric, self.role, self.met)[self.at]

    def ranks(self) -> np.ndarray:
        return self.rows.ranks_against(self.role, self.met)[self.at]


def read_evaluated(store: Store, label: str, run: Run) -> Evaluated | None:
    """Return a run with its row results; None if it was not evaluated or kept no answers to single rows."""
    outcome = run.outcome(Stage.evaluate)
    if not isinstance(outcome, EvaluateOutcome) or outcome.rows_key is None:
        return None
    roles: dict[str, Role] = {}
    for each in outcome.measured:
        roles.setdefault(each.version, each.role)
    items = outcome.whole_items or outcome.corpus_items
    return Evaluated(label, run, outcome, read_row_results(store, outcome.rows_key), roles, outcome.challenger, items)


def read_trained(store: Store, label: str, run: Run) -> Evaluated | None:
    """Return a run with its model's answers to the holdout within the training, after the last step; None without."""
    outcome = run.outcome(Stage.train)
    if not isinstance(outcome, TrainOutcome) or outcome.answers_key is None:
        return None
    rows = read_row_results(store, outcome.answers_key)
    return Evaluated(label, run, None, rows, {}, outcome.curve[-1].metrics, int(rows.competitors.max()) + 1)


def common_rows(
    store: Store, a: Evaluated, b: Evaluated
) -> tuple[tuple[ComparedModel, ComparedModel], str | None, str, list[str]]:
    """Return both models' answers to the same rows, the run that measured both, the ranked items, and notes."""
    for base, other in ((b, a), (a, b)):
        role = base.roles.get(other.version or "")
        if role is None or role not in base.rows.ranks:
            continue
        at = np.flatnonzero(~base.rows.golden)
        met = None if role is Role.challenger else role
        rows, among, notes = _met_in(base, role)
        own, its = ComparedModel(rows, Role.challenger, met, at), ComparedModel(rows, role, met, at)
        if met is None:
            notes.append(f"{a.label} and {b.label} are the same model, {a.version}.")
        sides = (its, own) if base is b else (own, its)
        return sides, base.run.run_key, among, notes
    at_a, at_b = _common(a.rows, b.rows)
    sides = ComparedModel(a.rows, Role.challenger, None, at_a), ComparedModel(b.rows, Role.challenger, None, at_b)
    notes = []
    if not len(at_a):
        notes.append(
            f"{a.label} and {b.label} hold out no row in common: {_spans(a)} and {_spans(b)}. Their metrics are of "
            "other rows and can't be compared."
        )
    alike = not a.outcome or catalogues.of_run(store, a.run.run_key) == catalogues.of_run(store, b.run.run_key)
    if alike and a.items == b.items:
        return sides, None, f"among {plural(a.items, 'item')}", notes
    if len(at_a):
        notes.append(
            f"{a.label} ranks each row's item among {plural(a.items, 'item')}, {b.label} among {b.items:,} of another "
            "catalogue, so ranking metrics differ by the catalogues too."
        )
    return sides, None, "each among the items of its own catalogue", notes


def _met_in(base: Evaluated, role: Role) -> tuple[RowResults, str, list[str]]:
    """Return the answers of a run that measured both models, the items that they are among, and notes.

    With too few common items, both are compared in the corpus of all models.
    """
    outcome = base.outcome
    assert outcome is not None, "only an evaluation measures several models"
    corpus = f"among {plural(outcome.corpus_items, 'item')}"
    if role not in outcome.shared_items:
        return base.rows, corpus, []
    common = CommonItems(outcome.shared_items[role], outcome.catalogue_items)
    plan = base.run.plan
    if plan is None or not common.few(plan.config.evaluate.min_shared):
        return base.rows, common.words, []
    note = f"They are compared {corpus} that no model chose, since they have few in common: {common.words}."
    return base.rows.without_shared(role), corpus, [note]


def _spans(each: Evaluated) -> str:
    names = sorted(set(each.rows.span[~each.rows.golden]))
    between = f"{names[0]} to {names[-1]}" if len(names) > 1 else "".join(names) or "no span"
    return f"{plural(held_out(each), 'row')} of {between}"


def _common(a: RowResults, b: RowResults) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the holdout rows that both files have, int64 (common rows,) in each file."""
    keys = [zip(each.span, each.row_id, each.item_id, each.group.tolist(), strict=True) for each in (a, b)]
    there = {key: at for at, key in enumerate(keys[1]) if not b.golden[at]}
    pairs = [(at, there[key]) for at, key in enumerate(keys[0]) if not a.golden[at] and key in there]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def held_out(each: Evaluated | None) -> int:
    return int((~each.rows.golden).sum()) if each is not None else 0


DOUBT = 0.05  # share outside an interval, half of it at each end
MOST_QUERIES = 8  # in each direction
LABELS = "ABCDEFGH"

_WHOLE: tuple[AnyQueries, ...] = ("all",)
_Found = tuple[Evaluated | None, Evaluated | None]


def compare_runs(store: Store, named: Sequence[tuple[str, Run]]) -> Comparison:
    """Compare the first run with each other one.

    Args:
        named: at most eight runs, each with the name to show.

    Raises:
        StoreError: the row results of an evaluation can't be read; names the file.
    """
    labelled = [(label, name, run) for label, (name, run) in zip(LABELS, named, strict=False)]
    evaluated = {label: read_evaluated(store, label, run) for label, _, run in labelled}
    trained = {label: read_trained(store, label, run) for label, _, run in labelled if None in evaluated.values()}
    first, *others = labelled
    metric, costs = costs_to_target([run for _, run in named])
    return Comparison(
        metric=metric,
        runs=tuple(_shown(*one, of_run) for one, of_run in zip(labelled, costs, strict=True)),
        settings=tuple(_settings([run for _, run in named])),
        pairs=tuple(
            _pair(store, (first[0], label), (first[2], run), _same_way(evaluated, trained, (first[0], label)))
            for label, _, run in others
        ),
    )


def _same_way(
    evaluated: Mapping[str, Evaluated | None], trained: Mapping[str, Evaluated | None], labels: tuple[str, str]
) -> _Found:
    """Return two runs with answers of one kind: of their evaluations, else of their trainings; the first if neither."""
    a, b = (evaluated[label] for label in labels)
    within = trained.get(labels[0]), trained.get(labels[1])
    return within if None in (a, b) and None not in within else (a, b)


def _shown(label: str, name: str, run: Run, costs: RunCosts) -> ComparedRun:
    trained, measured = run.outcome(Stage.train), run.outcome(Stage.evaluate)
    trained = trained if isinstance(trained, TrainOutcome) else None
    measured = measured if isinstance(measured, EvaluateOutcome) else None
    return ComparedRun(
        label=label,
        name=name,
        run_key=run.run_key,
        span=run.span,
        lineage=run.lineage,
        state=run.state,
        release=run.release.number if run.release is not None else None,
        model_version=trained.model_version if trained else None,
        metrics=measured.challenger if measured else {},
        holdout_rows=measured.holdout_rows if measured else None,
        first_step=trained.first_step if trained else None,
        last_step=trained.last_step if trained else None,
        learning_rate=trained.learning_rate.rate if trained and trained.learning_rate else None,
        losses=trained.losses if trained else (),
        rates=tuple(_rates(run.config.train, trained)) if trained and run.config is not None else (),
        curve=trained.curve if trained else (),
        costs=costs.points,
        target=costs.target,
    )


def _rates(config: TrainConfig, trained: TrainOutcome) -> Iterator[CurvePoint]:
    """Yield the rate of the schedule at the steps with a loss; a point is named after the step that it ends."""
    steps = range(trained.first_step, trained.last_step)
    for point in trained.losses:
        yield CurvePoint(step=point.step, metrics={RATE: rate_in_run(point.step - 1, steps, config)})


def _settings(runs: Sequence[Run]) -> Iterator[ComparedSetting]:
    """Yield the settings that decide a model and differ; a lineage's name does not count."""
    found = [leaves(run.config.work()) if run.config is not None else {} for run in runs]
    for key in dict.fromkeys(key for each in found for key in each):
        values = tuple(each.get(key) for each in found)
        if key != "lineage" and any(value != values[0] for value in values):
            yield ComparedSetting(key=key, values=values)


def _pair(store: Store, labels: tuple[str, str], runs: tuple[Run, Run], found: _Found) -> ComparedPair:
    lack = [
        f"{label}, run {run.run_key} over {run.span}, has no evaluation with answers to single rows: its state is "
        f"{run.state}."
        for label, run, each in zip(labels, runs, found, strict=True)
        if each is None
    ]
    a, b = found
    if a is None or b is None:
        return _nothing(labels, found, lack)
    sides, measured_in, items, notes = common_rows(store, a, b)
    if a.outcome is None:
        notes.insert(0, "They are compared by their answers within the training, after its last step.")
    if not len(sides[0].at):
        return _nothing(labels, found, notes)
    losses, wins = _queries(store, a if sides[1].rows is a.rows else b, sides)
    return ComparedPair(
        a=labels[0],
        b=labels[1],
        measured_in=measured_in,
        rows=len(sides[0].at),
        rows_a=held_out(a),
        rows_b=held_out(b),
        items=items,
        notes=(*notes, *_other_metrics(a, b)),
        metrics=tuple(_metrics(a, b, sides)),
        slices=tuple(_slices(a, b, sides)),
        losses=losses,
        wins=wins,
    )


def _nothing(labels: tuple[str, str], found: _Found, notes: Sequence[str]) -> ComparedPair:
    return ComparedPair(
        a=labels[0],
        b=labels[1],
        measured_in=None,
        rows=0,
        rows_a=held_out(found[0]),
        rows_b=held_out(found[1]),
        items="",
        notes=tuple(notes),
        metrics=(),
        slices=(),
        losses=(),
        wins=(),
    )


def _other_metrics(a: Evaluated, b: Evaluated) -> Iterator[str]:
    """Yield a sentence about the metrics that one run alone has."""
    for one, other in ((a, b), (b, a)):
        alone = [name for name in one.metrics if name not in other.metrics]
        if alone:
            yield f"{other.label} gives no {', '.join(alone)}, so these are not compared."


def _metrics(a: Evaluated, b: Evaluated, sides: tuple[ComparedModel, ComparedModel]) -> Iterator[ComparedMetric]:
    """Yield each metric; a ranking metric on unseen queries first, then on seen ones, then on all."""
    every = np.ones(len(sides[0].at), dtype=bool)
    unseen = sides[0].rows.unseen[sides[0].at] & sides[1].rows.unseen[sides[1].at]
    parts: dict[AnyQueries, np.ndarray] = {"unseen": unseen, "seen": ~unseen, "all": every}
    for name in a.metrics:
        if name in b.metrics and METRICS[name].family.of_rows:
            ranked = METRICS[name].family is Family.ranking
            for queries in parts if ranked else _WHOLE:
                found = _measure(name, sides, parts[queries], queries)
                if found is not None:
                    yield found


def _slices(a: Evaluated, b: Evaluated, sides: tuple[ComparedModel, ComparedModel]) -> Iterator[ComparedSlice]:
    """Yield the slices of `evaluate.slices` of the second run, by its first ranking gate's metric."""
    config, (_, side) = b.run.config, sides
    if config is None or not a.rows.ranks or not b.rows.ranks:
        return
    metric, evaluate = ranking_metric(config), config.evaluate
    for column in evaluate.slices:
        if column not in side.rows.columns:
            continue
        for part in slices_of(side.rows, column):
            found = _measure(metric, sides, part.rows[side.at])
            if found is not None and found.rows >= evaluate.min_slice_rows:
                yield ComparedSlice(column=column, value=part.where, numbers=found)


def _measure(
    metric: str, sides: tuple[ComparedModel, ComparedModel], among: np.ndarray, queries: AnyQueries = "all"
) -> ComparedMetric | None:
    """Return a metric over the rows of a mask, bool (common rows,); None if it is undefined."""
    a, b = sides
    counted = among & a.counts(metric) & b.counts(metric)
    if not counted.any():
        return None
    answers = Answers(
        metric,
        groups=b.rows.group[b.at][counted],
        items=b.rows.item_id[b.at][counted],
        truth=truths(b.rows, metric)[b.at][counted],
        values=(b.values(metric)[counted], a.values(metric)[counted]),
    )
    value_b, value_a = measure(answers)
    if not math.isfinite(value_b - value_a):
        return None
    low, high = error_of(Term(answers, (1.0, -1.0))).bounds(value_b - value_a, 1 - DOUBT / 2)
    return ComparedMetric(
        metric=metric,
        queries=queries,
        rows=int(counted.sum()),
        a=value_a,
        b=value_b,
        difference=value_b - value_a,
        low=low,
        high=high,
        answer="undecided" if low <= 0 <= high else "better" if METRICS[metric].sign * low > 0 else "worse",
    )


def _queries(
    store: Store, of: Evaluated, sides: tuple[ComparedModel, ComparedModel]
) -> tuple[tuple[ComparedQuery, ...], tuple[ComparedQuery, ...]]:
    """Return the queries that lost and that won most, by the change of the reciprocal rank.

    Args:
        of: the run with the file of the second side, whose spans hold the texts.
    """
    a, b = sides
    pairs = np.flatnonzero(a.counts("recall@10") & b.counts("recall@10"))
    ranks_a, ranks_b = a.ranks(), b.ranks()
    gain = 1.0 / ranks_b[pairs] - 1.0 / ranks_a[pairs]
    order = np.argsort(gain, kind="stable")
    losing = [int(pairs[at]) for at in order[:MOST_QUERIES] if gain[at] < 0]
    winning = [int(pairs[at]) for at in order[::-1][:MOST_QUERIES] if gain[at] > 0]
    spans, row_ids, item_ids = (each[b.at] for each in (b.rows.span, b.rows.row_id, b.rows.item_id))
    texts = _texts(store, of.run, {(str(spans[at]), str(row_ids[at])) for at in (*losing, *winning)})

    def query(at: int) -> ComparedQuery:
        span, row_id = str(spans[at]), str(row_ids[at])
        text, item = texts.get((span, row_id), ("", ""))
        ranks = {"rank_a": int(ranks_a[at]), "rank_b": int(ranks_b[at])}
        return ComparedQuery(span=span, row_id=row_id, query=text, item_id=str(item_ids[at]), item=item, **ranks)

    return tuple(map(query, losing)), tuple(map(query, winning))


def _texts(store: Store, run: Run, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the texts of query and item by span and row; rows whose folder is gone are left out."""
    validated, spec = run.outcome(Stage.validate), run.stage(Stage.train).last_spec() if run.plan is None else None
    rows = validated.rows if isinstance(validated, ValidateOutcome) else ()
    history = run.plan.history if run.plan is not None else ()
    if spec is not None and isinstance(spec.inputs, TrainInputs):  # another run validated the rows of a side
        rows, history = spec.inputs.rows, spec.inputs.history
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for ref in (*history, *rows):
        ids = {row_id for span, row_id in wanted if span == ref.span.name}
        if ids and ref.held is not None:
            with contextlib.suppress(StoreError):  # a comparison without a text is better than none
                found |= {(ref.span.name, row): texts for row, texts in held_texts(store, ref.held, ids).items()}
    return found
