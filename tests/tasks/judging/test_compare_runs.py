"""Runs compared on rows whose ranks are written down: numbers worked out by hand, and the limits that are named."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.comparison import ComparedPair, Comparison
from tasks.contracts.evaluation import Measurement, Role
from tasks.contracts.outcomes import EvaluateOutcome, StageResult, ValidateOutcome
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.judging.compare_runs import compare_runs
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.past import settings, week, write_run

GOOD, BAD = [1] * 60, [40] * 60
METRICS: dict[str, float] = {"recall@10": 0.5, "mrr@10": 0.5}


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def evaluated(
    store: Store,
    number: int,
    ranks: Mapping[Role, Sequence[int]],
    versions: Mapping[Role, str],
    *settings_of: str,
    first_row: int = 0,
    items: int = 100,
    metrics: Mapping[str, float] = METRICS,
    shared: tuple[int, int] | None = None,
) -> Run:
    """A run over the n-th week whose evaluation gave these ranks to rows `row <first_row>` and so on.

    `shared`: items that both hold, and of the catalogue; among those the challenger finds all, and the champion none.
    """
    key = write_run(store, number, config=settings(*settings_of))
    many = len(ranks[Role.challenger])
    names = [f"row {at}" for at in range(first_row, first_row + many)]
    columns: dict[str, Sequence[object]] = {
        "row_id": names,
        "span": [week(0)] * many,
        "query_key": list(range(first_row, first_row + many)),
        "group": list(range(first_row, first_row + many)),
        "item_id": [f"item of {name}" for name in names],
        "pair": [True] * many,
        "unseen": [at % 2 == 0 for at in range(many)],
        "query_trained": [True] * many,
        "label_class": pa.array([-1] * many, pa.int8()),
        "column.locale": ["de" if at % 2 else "en" for at in range(many)],
        "competitors": pa.array([100] * many, pa.int32()),
        **{f"{role}.rank": pa.array(each, pa.int32()) for role, each in ranks.items()},
    }
    if shared is not None:
        of_both = {"challenger.shared.champion": 1, "champion.shared.champion": 99, "competitors.shared.champion": 100}
        columns |= {name: pa.array([value] * many, pa.int32()) for name, value in of_both.items()}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    store.write(f"runs/{key}/evaluate/attempt-1/rows.parquet", file.getvalue())
    outcome = EvaluateOutcome(
        holdout_rows=many,
        corpus_items=items,
        challenger=dict(metrics),
        champion=None,
        champion_version=None,
        measured=tuple(
            Measurement(role=role, version=version, release=None, metrics={}, vectors={})
            for role, version in versions.items()
        ),
        rows_key=f"runs/{key}/evaluate/attempt-1/rows.parquet",
        catalogue_items=shared[1] if shared else items,
        shared_items={Role.champion: shared[0]} if shared else {},
    )
    change(store, key, Stage.evaluate, outcome)
    return read_run(Snapshot(store), key)


def change(store: Store, key: str, stage: Stage, outcome: EvaluateOutcome | ValidateOutcome) -> None:
    result = StageResult.model_validate_json(store.read(RESULT.key(run=key, stage=stage)))
    store.write(RESULT.key(run=key, stage=stage), result.model_copy(update={"outcome": outcome}).to_json())


def compared(store: Store, *runs: Run) -> Comparison:
    return compare_runs(store, [(f"run {number}", run) for number, run in enumerate(runs)])


def pair_of(store: Store, a: Run, b: Run) -> ComparedPair:
    (pair,) = compared(store, a, b).pairs
    return pair


def test_one_evaluation_of_both_models_serves_for_both(store):
    champion = [1] * 40 + [20] * 20
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"})
    b = evaluated(
        store, 1, {Role.challenger: GOOD, Role.champion: champion}, {Role.challenger: "new", Role.champion: "old"}
    )
    for first, second, sign in ((a, b, 1), (b, a, -1)):
        pair = pair_of(store, first, second)
        assert (pair.measured_in, pair.rows) == (b.run_key, 60)
        unseen, seen, recall = (each for each in pair.metrics if each.metric == "recall@10")
        assert [each.queries for each in (unseen, seen, recall)] == ["unseen", "seen", "all"]
        assert (unseen.rows, seen.rows, recall.rows) == (30, 30, 60)
        assert unseen.a + seen.a == pytest.approx(2 * recall.a)
        assert {recall.a, recall.b} == {40 / 60, 1.0}
        assert recall.difference == pytest.approx(sign / 3)
        assert recall.answer == ("better" if sign > 0 else "worse")
        assert recall.low is not None
        assert recall.high is not None
        # the standard error of a share of 1/3 in 60 rows is 0.061; the interval is wider on the side of the skew
        assert recall.high - recall.low == pytest.approx(2 * 1.96 * 0.061, rel=0.15)


@pytest.mark.parametrize(("items", "difference"), [(0, 0.0), (49, 0.0), (50, 1.0)])
def test_models_with_few_items_in_common_are_compared_on_the_corpus(store, items: int, difference: float):
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"})
    versions = {Role.challenger: "new", Role.champion: "old"}
    b = evaluated(store, 1, {Role.challenger: GOOD, Role.champion: GOOD}, versions, shared=(items, 100))
    pair = pair_of(store, a, b)
    assert {each.difference for each in pair.metrics if each.metric == "recall@10"} == {difference}
    few = [note for note in pair.notes if "they have few in common" in note]
    assert (f"{items} %" in pair.items, len(few)) == (difference, 0 if difference else 1)


def test_runs_apart_are_compared_on_the_rows_that_both_hold_out(store, golden):
    a = evaluated(store, 0, {Role.challenger: [1] * 30 + [50] * 30}, {Role.challenger: "old"})
    b = evaluated(store, 1, {Role.challenger: BAD}, {Role.challenger: "new"}, first_row=20, items=120)
    pair = pair_of(store, a, b)
    assert (pair.measured_in, pair.rows, pair.rows_a, pair.rows_b) == (None, 40, 60, 60)
    recall = next(each for each in pair.metrics if each.queries == "all")
    assert (recall.rows, recall.a, recall.b) == (40, 0.25, 0.0)
    golden(pair.notes)


def test_runs_without_a_common_row_are_not_compared(store, golden):
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"})
    b = evaluated(store, 1, {Role.challenger: BAD}, {Role.challenger: "new"}, first_row=900)
    pair = pair_of(store, a, b)
    assert (pair.rows, pair.metrics) == (0, ())
    golden(pair.notes)


def test_a_run_without_an_evaluation_is_named(store):
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"})
    stopped = read_run(Snapshot(store), write_run(store, 1, "Failed"))
    (note,) = pair_of(store, a, stopped).notes
    assert stopped.run_key in note


def test_a_metric_that_one_run_lacks_is_named_and_left_out(store):
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"}, metrics={**METRICS, "recall@1": 1.0})
    b = evaluated(store, 1, {Role.challenger: BAD}, {Role.challenger: "new"})
    pair = pair_of(store, a, b)
    assert list(dict.fromkeys(each.metric for each in pair.metrics)) == ["recall@10", "mrr@10"]
    assert any("recall@1," in note for note in pair.notes)


def test_equal_models_are_neither_better_nor_worse(store, golden):
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"})
    pair = pair_of(store, a, a)
    assert {each.answer for each in pair.metrics} == {"undecided"}
    golden(pair.notes)
    assert pair.wins == pair.losses == ()


def test_slices_are_those_of_the_settings_with_enough_rows(store):
    slices = ("evaluate.slices=[locale]", "evaluate.min_slice_rows=30")
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"}, *slices)
    b = evaluated(store, 1, {Role.challenger: [1, 40] * 30}, {Role.challenger: "new"}, *slices)
    found = {each.value: each.numbers.difference for each in pair_of(store, a, b).slices}
    assert found == {"de": -1.0, "en": 0.0}
    few = evaluated(store, 2, {Role.challenger: BAD}, {Role.challenger: "x"}, slices[0], "evaluate.min_slice_rows=31")
    assert pair_of(store, a, few).slices == ()


def test_the_worst_queries_have_the_texts_of_the_held_out_rows(store, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("held")
    a = evaluated(store, 0, {Role.challenger: [1, 2, 9, 5]}, {Role.challenger: "old"})
    b = evaluated(store, 1, {Role.challenger: [4, 200, 1, 5]}, {Role.challenger: "new"})
    validated = b.outcome(Stage.validate)
    assert isinstance(validated, ValidateOutcome)
    texts = {"row_id": ["row 0", "row 2"], "query": ["boots", "tent"], "item": ["red boots", "small tent"]}
    pq.write_table(pa.table(texts), tmp_path / "rows-00.parquet")
    commit(store, "held", tmp_path, "held", {})
    ref = validated.rows[0].model_copy(update={"span": validated.rows[0].span.model_copy(update={"name": week(0)})})
    rows = (ref.model_copy(update={"held": "held"}),)
    change(store, b.run_key, Stage.validate, validated.model_copy(update={"rows": rows}))
    pair = pair_of(store, a, read_run(Snapshot(store), b.run_key))
    assert [(each.query, each.rank_a, each.rank_b) for each in pair.losses] == [("boots", 1, 4), ("", 2, 200)]
    assert [(each.item, each.rank_a, each.rank_b) for each in pair.wins] == [("small tent", 9, 1)]


def test_only_settings_that_decide_a_model_differ(store):
    a = evaluated(store, 0, {Role.challenger: GOOD}, {Role.challenger: "old"})
    b = evaluated(store, 1, {Role.challenger: GOOD}, {Role.challenger: "new"}, "train.epochs=3", "links.tensorboard=x")
    found = compared(store, a, b)
    assert [(each.key, each.values) for each in found.settings] == [("train.epochs", (1, 3))]
    assert [run.label for run in found.runs] == ["A", "B"]
