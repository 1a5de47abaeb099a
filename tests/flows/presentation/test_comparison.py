"""The page of compared runs: its verdicts in words, the limits that it names, and figures for each pair."""

from __future__ import annotations

from flows.presentation import html
from flows.presentation.run.comparison import comparison_page, metrics_table
from tasks.contracts.comparison import ComparedMetric, ComparedPair, ComparedQuery, ComparedRun, Comparison, CostPoint
from tasks.contracts.references import CurvePoint
from tasks.contracts.runs import RunState
from tests.support.pages.golden import Golden
from tests.support.pages.shown import Page


def run(label: str, first_step: int = 0, **changes: object) -> ComparedRun:
    made = ComparedRun(
        label=label,
        name=f"name of {label}",
        run_key=label * 16,
        span="2026-01",
        lineage="main",
        state=RunState.UNFINISHED,
        release=None,
        model_version="m",
        metrics={"recall@10": 0.5},
        holdout_rows=40,
        first_step=first_step,
        last_step=first_step + 20,
        learning_rate=1e-3,
        losses=tuple(CurvePoint(step=first_step + at, metrics={"loss": 1 / at}) for at in (10, 20)),
        rates=(),
        curve=(),
    )
    return made.model_copy(update=changes)


def metric(name: str, low: float, high: float) -> ComparedMetric:
    answer = "better" if low > 0 else "worse" if high < 0 else "undecided"
    return ComparedMetric(
        metric=name, queries="all", rows=40, a=0.5, b=0.6, difference=0.1, low=low, high=high, answer=answer
    )


def pair(*metrics: ComparedMetric, notes: tuple[str, ...] = (), b: str = "B") -> ComparedPair:
    lost = ComparedQuery(span="2026-01", row_id="7", query="<b>boots</b>", item_id="i", item="", rank_a=1, rank_b=90)
    return ComparedPair(
        a="A", b=b, measured_in=None, rows=40 if metrics else 0, rows_a=50, rows_b=60, items="among 9 items",
        notes=notes, metrics=metrics, slices=(), losses=(lost,), wins=(),
    )  # fmt: skip


def shown(*pairs: ComparedPair, first_step_of_b: int = 0) -> Page:
    others = [run(each.b, first_step_of_b) for each in pairs]
    compared = Comparison(runs=(run("A"), *others), settings=(), pairs=pairs)
    return Page(html.render(comparison_page(compared, "/ws")))


def test_an_interval_on_both_sides_of_zero_tells_nothing(golden: Golden) -> None:
    page = shown(pair(metric("recall@10", -0.1, 0.3), metric("mrr@10", 0.05, 0.2)))
    golden(page.lines)
    answers = [row[-1].text for row in metrics_table(pair(metric("loss", -0.2, -0.1), metric("auc", -0.1, 0.1))).rows]
    assert answers == ["worse", "undecided"]


def test_runs_that_cannot_be_compared_say_so_by_name(golden: Golden) -> None:
    page = shown(pair(notes=("A and B hold out no row in common.",)), pair(metric("recall@10", 0.1, 0.2), b="C"))
    golden(page.lines)
    assert len(set(page.ids)) == len(page.ids)


def test_steps_count_from_each_runs_begin_if_the_runs_begin_apart() -> None:
    assert "by global step" in shown(pair(metric("auc", 0.1, 0.2))).text
    page = shown(pair(metric("auc", 0.1, 0.2)), first_step_of_b=100)
    assert "step of the run" in page.text
    assert "<b>boots</b>" in page.text, "texts are escaped"


def test_the_cost_of_being_as_good_is_told_for_each_run() -> None:
    points = tuple(
        CostPoint(step=step, seconds=step * 30.0, dollars=step * 0.5, value=step / 40) for step in (0, 10, 20)
    )
    runs = (
        run("A", costs=points, target=points[2]),
        run("B", costs=points[:2]),
        run("C", costs=points, target=points[1]),
    )
    made = Comparison(runs=runs, settings=(), pairs=(), metric="recall@10")
    (cost,) = [each for each in comparison_page(made, "/ws").sections if each.id == "cost"]
    assert [[cell.text for cell in row][3:] for row in cost.tables[0].rows] == [
        ["$10.00", "20", "600.0", "$10.00"],
        ["$5.00", "not reached", "–", "–"],
        ["$10.00", "10", "300.0", "$5.00"],
    ]
    assert "recall@10 over dollars" in Page(html.render(comparison_page(made, "/ws"))).text
