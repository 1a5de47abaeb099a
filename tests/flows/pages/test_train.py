import base64
import re
import xml.etree.ElementTree as ElementTree

from flows.pages.train import page
from tasks.contracts import CurvePoint
from tasks.plan import plan_run
from tests.support.fake_runner import small_config
from tests.support.pages import table_of, told
from tests.support.stages import carry_out

PICTURE = re.compile(r"!\[([^]]+)\]\(data:image/svg\+xml;base64,([^)]+)\)")


def points(*values: tuple[int, dict[str, float]]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(step=step, metrics=metrics) for step, metrics in values)


def test_losses_and_metrics_have_their_pictures_and_the_same_ones_each_time(store, runner):
    plan = plan_run(store, small_config())
    runner.metrics = {"recall@10": 0.5, "mrr@10": 0.3, "auc": 0.9}
    trained = carry_out(plan).trained
    text = page(store, plan, trained)
    pictures = PICTURE.findall(text)
    assert [words for words, _ in pictures] == [
        "Training losses over the steps",
        "Holdout metrics of retrieval over the steps",
        "Holdout metrics of classification over the steps",
    ]
    for _, svg in pictures:
        ElementTree.fromstring(base64.b64decode(svg))
    assert page(store, plan, trained) == text


def test_what_was_not_measured_has_no_picture(store, runner):
    plan = plan_run(store, small_config())
    text = page(store, plan, carry_out(plan).trained.model_copy(update={"losses": (), "curve": ()}))
    assert not PICTURE.findall(text)
    assert "No loss was logged" in text
    assert "before and after" not in text


def test_speed_steps_and_precision(store, runner):
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    trained = carry_out(plan).trained.model_copy(update={"resumed_at_step": 15, "pairs_per_second": 1234.5})
    text = page(store, plan, trained)
    assert text.startswith("# 10 steps over 40 pairs\n")
    values = told(text, "value")
    assert values["steps of the lineage"] == "10 to 20"
    assert values["resumed at step"] == "15"
    assert values["pairs per second"] == "1,234.5"
    assert values["precision"] == "fp32"
    assert values["model"] == trained.model_version
    assert ["checkpoint", f"{store.uri}/{trained.checkpoint.prefix}"] in table_of(text, "where")


def test_the_holdout_before_is_held_against_the_one_after(store, runner):
    plan = plan_run(store, small_config())
    curve = points((0, {"recall@10": 0.5}), (5, {"recall@10": 0.1}), (10, {"recall@10": 0.75, "auc": 0.9}))
    losses = points((5, {"loss": 2.0}), (10, {"loss": 1.5}))
    text = page(store, plan, carry_out(plan).trained.model_copy(update={"curve": curve, "losses": losses}))
    assert "The loss went from 2.0000 to 1.5000." in text
    assert table_of(text, "metric") == [
        ["metric", "step 0", "step 10", "difference"],
        ["recall@10", "0.5000", "0.7500", "+0.2500"],
        ["auc", "", "0.9000", ""],
    ]
