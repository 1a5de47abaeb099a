"""The section of evaluate: its verdicts, metrics, samples and slices."""

from __future__ import annotations

from flows.presentation.stages.evaluate import metrics
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Override, SliceMetrics
from tasks.contracts.stages import Stage
from tests.flows.presentation.done import Done
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.pages.golden import Golden
from tests.support.pages.shown import row, rows, written


def test_evaluate_shows_verdicts_and_compares_with_the_champion(done: Done, golden: Golden) -> None:
    first = done.of(Stage.evaluate, done.run.judged)
    again = Done(done.store)
    made = again.of(Stage.evaluate, again.run.judged)
    golden(written(first, parts=False), written(made, parts=False))


def test_an_undecided_gate_refuses_only_where_it_is_set_to_and_a_human_is_named(done: Done, golden: Golden) -> None:
    verdict = done.run.judged.verdicts[0].model_copy(update={"answer": "undecided", "where": "locale=de"})
    strict = verdict.model_copy(update={"undecided_refuses": True})
    made = done.of(Stage.evaluate, done.run.judged, verdicts=(verdict,), larger_class=0.8)
    assert made.title == "Evaluate: accepted"
    assert rows(made)[0][:2] == ["recall@10, locale=de vs champion", "? undecided"]
    ada = Override(name="Ada", reason="the holdout is odd", at="2026-01-02T03:04:05+00:00", refusals=("too few",))
    made = done.of(Stage.evaluate, done.run.judged, verdicts=(strict,), overrides=(ada,))
    golden(written(made, parts=False))
    assert rows(made)[0][1] == "✕ undecided, refused"
    words = "Ada let it pass at 2026-01-02 03:04 UTC although gates refused it: the holdout is odd"
    assert words in made.lines
    release = done.run.released
    assert release is not None
    assert words in done.of(Stage.release, release, overrides=(ada,)).lines


def test_the_larger_class_stands_next_to_accuracy() -> None:
    made = metrics({"accuracy": 0.9, "auc": 0.7}, None, "10 holdout rows among 20 items", 0.8)
    assert [[cell.text for cell in each[:2]] for each in made.rows][1][1] == "0.8000"


def test_a_head_that_only_names_the_larger_class_is_warned_about(done: Done, golden: Golden) -> None:
    def lines(**metrics: float) -> str:
        outcome = done.run.judged.outcome.model_copy(update={"challenger": {"recall@10": 0.5, **metrics}})
        judged = {"outcome": outcome, "larger_class": 0.96, "auc_by_chance": 0.54}
        return " ".join(done.of(Stage.evaluate, done.run.judged, **judged).lines)

    weak = lines(macro_f1=0.48, auc=0.535)
    golden(weak)
    assert "Warning" not in lines(macro_f1=0.49, auc=0.55)
    assert "Warning" not in lines()


def test_a_head_of_labels_that_gives_one_answer_is_warned_about(done: Done, golden: Golden) -> None:
    def lines(**metrics: float) -> str:
        outcome = done.run.judged.outcome.model_copy(update={"challenger": metrics})
        skill = {"rmse": 1.2, "multiclass_macro_f1": 0.3, "multiclass_accuracy": 0.8}
        return " ".join(done.of(Stage.evaluate, done.run.judged, outcome=outcome, without_skill=skill).lines)

    golden(lines(rmse=1.2))
    assert "heads.multiclass.refit_rows" in lines(multiclass_macro_f1=0.29, multiclass_accuracy=0.9)
    assert "Warning" not in lines(rmse=1.19, multiclass_macro_f1=0.31, multiclass_accuracy=0.7)
    made = metrics({"rmse": 1.0}, None, "10 rows", None, {"rmse": 1.2})
    assert len(made.rows) == 2


def test_without_gates_there_is_no_verdict(store: DirectoryStore, runner: FakeRunner, golden: Golden) -> None:
    done = Done(store, "evaluate.gates=[]")
    golden([each.caption for each in done.of(Stage.evaluate, done.run.judged).tables[:2]])


def test_a_sample_is_shown_with_what_it_is_of_and_its_interval(done: Done, golden: Golden) -> None:
    outcome = done.run.judged.outcome.model_copy(update={"holdout_there": 1_240_000})
    made = done.of(Stage.evaluate, done.run.judged, outcome=outcome)
    golden(written(made, parts=False))
    assert row(made, "recall@10, seen queries")[:2] == ["0.5000", "0.4800 to 0.5200"]


def test_the_worst_slice_comes_first(done: Done) -> None:
    judged = done.run.judged
    slices = tuple(
        SliceMetrics(column="category", value=value, rows=many, metrics=metrics)
        for value, many, metrics in (
            ("bags", 1154, {"recall@10": 0.6, "mrr@10": 0.1}),
            ("shoes", 24, {"recall@10": 0.1, "mrr@10": 0.2}),
            ("hats", 77, {"recall@10": 0.45}),
        )
    )
    made = done.of(Stage.evaluate, judged.model_copy(update={"slices": slices}))
    assert [cells for cells in rows(made) if cells[0].startswith("category")] == [
        ["category = shoes", "24", "0.1000", "−0.4000", "–", "0.2000"],
        ["category = hats", "77", "0.4500", "−0.0500", "–", "–"],
        ["category = bags", "1,154", "0.6000", "+0.1000", "–", "0.1000"],
    ]
