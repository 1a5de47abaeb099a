from flows.pages.evaluate import page
from tasks.contracts import SliceMetrics
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import table_of, tables
from tests.support.stages import carry_out

HOSTILE = "shoes | <b>bags</b>\n`x`"


def test_verdicts_come_first_then_champion_beside_challenger(store, runner):
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    judged = carry_out(plan).judged
    text = page(store, plan, judged)
    assert text.startswith("# Accepted\n\nEvery critical gate lets it pass.")
    gates, metrics, *_ = tables(text)
    assert gates[1:] == [
        ["passed", "recall@10", "critical", judged.verdicts[0].sentence],
        ["warning", "mrr@10", "warning", judged.verdicts[1].sentence],
    ]
    assert metrics == [
        ["metric", "challenger", "champion", "difference"],
        ["recall@10", "0.5000", "0.4000", "+0.1000"],
        ["mrr@10", "0.3000", "0.4000", "-0.1000"],
    ]
    assert f"Champion: `{judged.outcome.champion_version}`." in text
    assert ["verdicts", f"{store.uri}/runs/{plan.run_key}/evaluate/verdicts.json"] in table_of(text, "where")


def test_a_refused_model_says_why_at_the_top(store, runner):
    carry_out(plan_run(store, small_config()))
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.39}
    plan = plan_run(store, small_config())
    text = page(store, plan, carry_out(plan).judged)
    assert text.startswith("# Rejected\n\nrecall@10 0.2000 is 0.2000 below the champion's 0.4000; allowed")
    assert tables(text)[0][1][0] == "REFUSED"


def test_the_first_model_has_nothing_beside_it(store, runner):
    plan = plan_run(store, small_config())
    text = page(store, plan, carry_out(plan).judged)
    assert "## Challenger beside nothing: no champion yet" in text
    assert tables(text)[1][1] == ["recall@10", "0.5000", "", ""]
    assert tables(text)[0][1][0] == "does not apply"
    assert "Slices" not in text


def test_without_gates_there_is_nothing_to_pass(store, runner):
    plan = plan_run(store, small_config("evaluate.gates=[]"))
    assert "No gate is configured." in page(store, plan, carry_out(plan).judged)


def test_the_slice_that_is_furthest_below_the_whole_comes_first(store, runner):
    plan = plan_run(store, small_config())
    judged = carry_out(plan).judged
    slices = tuple(
        SliceMetrics(column="category", value=value, rows=rows, metrics=metrics)
        for value, rows, metrics in (
            ("bags", 1154, {"recall@10": 0.6, "mrr@10": 0.1}),
            (HOSTILE, 24, {"recall@10": 0.1, "mrr@10": 0.2}),
            ("hats", 77, {"recall@10": 0.45}),
        )
    )
    outcome = judged.outcome.model_copy(update={"slices": slices})
    text = page(store, plan, judged.model_copy(update={"outcome": outcome}))
    assert "Against the whole holdout's recall@10 of 0.5000." in text
    assert table_of(text, "slice") == [
        ["slice", "rows", "recall@10", "difference", "mrr@10"],
        ["category=shoes | <b>bags</b> `x`", "24", "0.1000", "-0.4000", "0.2000"],
        ["category=hats", "77", "0.4500", "-0.0500", ""],
        ["category=bags", "1,154", "0.6000", "+0.1000", "0.1000"],
    ]
