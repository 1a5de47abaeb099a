"""Classes that are gone, and features that tell the class: which windows stop, and that chance stops none."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from configs.load import load_config
from tasks.worker.rows.columns import Compared
from tasks.worker.rows.values import ONE_CLASS, TOLD, judge_labels
from tests.support.pages.golden import Golden
from tests.support.workspace.spans import FEATURES, SCRATCH

CLASSES = "heads.classification={weight: 1.0, input: pair, negative_max: 0.0, positive_min: 1.0}"
CONFIG = load_config(None, [SCRATCH, *FEATURES, CLASSES])


Series = dict[str, np.ndarray]


def window(rows: int = 1000, seed: int = 0, series: Series | None = None) -> Compared:
    """Rows of which a quarter has class 0; no feature tells it. Brands are many, locales two."""
    random = np.random.default_rng(seed)
    columns = {
        "label": (random.random(rows) < 0.75).astype(np.float64),
        "price": random.lognormal(3, 1, rows),
        "brand": np.array([f"brand {each}" for each in random.integers(300, size=rows)], dtype=object),
        "locale": np.array(["de", "en"], dtype=object)[random.integers(2, size=rows)],
    }
    made = {name: pd.Series(values) for name, values in (columns | (series or {})).items()}
    return Compared(rows, made, {}, {}, {}, np.arange(rows, dtype=np.uint64), {})


NOTHING = Compared(0, {}, {}, {}, {}, np.empty(0, np.uint64), {})


def failed(now: Compared, earlier: Compared) -> dict[str, str]:
    return {check.name: check.severity for check in judge_labels(earlier, now, CONFIG) if not check.passed}


def values(name: str, seed: int = 0) -> np.ndarray:
    return window(seed=seed).series[name].to_numpy()


LABELS = values("label")


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({"label": np.ones(1000)}, {ONE_CLASS: "critical"}),
        ({"label": np.zeros(1000)}, {ONE_CLASS: "critical"}),
        ({"label": np.where(values("locale") == "de", 0.0, LABELS)}, {ONE_CLASS: "critical"}),
        ({"price": np.where(LABELS == 1, values("price"), np.nan)}, {TOLD: "critical"}),
        ({"price": values("price") + 20 * LABELS}, {TOLD: "warning"}),
        ({"price": values("price") + 1000 * LABELS}, {TOLD: "critical"}),
        ({"brand": np.where(LABELS == 1, values("brand"), "none")}, {TOLD: "critical"}),
        ({"price": np.where(np.arange(1000) % 3 == 0, np.nan, values("price"))}, {}),  # missing, but not by class
        ({"label": np.where(LABELS == 1, 1.0, np.nan)}, {ONE_CLASS: "critical"}),
    ],
)
def test_labels_that_have_changed_their_meaning_are_named(series: Series, expected: dict[str, str]):
    assert failed(window(series=series), window(3000, seed=1)) == expected


def test_a_shop_where_it_was_always_so_passes() -> None:
    usual = {"price": np.where(LABELS == 1, values("price"), np.nan)}
    assert failed(window(series=usual), window(series=usual)) == {}
    ones: Series = {"label": np.ones(1000)}
    assert failed(window(series=ones), window(series=ones)) == {}


@pytest.mark.parametrize("rows", [60, 200, 1000])
def test_chance_stops_no_window(rows: int) -> None:
    found = [failed(window(rows, seed), window(rows * 4, seed + 1000)) for seed in range(100)]
    assert found == [{}] * 100


def test_few_searches_of_many_customers_tell_nothing() -> None:
    """Sixty items, each with its own brand and price, make all rows: a feature names the item, and so its class."""
    picks = np.random.default_rng(3).integers(60, size=1000)
    heads = window(series={name: values(name)[picks] for name in ("label", "price", "brand", "locale")})
    heads = dataclasses.replace(heads, items=picks.astype(np.uint64))
    assert failed(heads, window(3000, seed=1)) == {}


def test_a_class_that_is_rare_may_be_missing_by_chance() -> None:
    rare = (np.random.default_rng(5).random(4000) > 0.004).astype(np.float64)
    assert failed(window(1000, series={"label": np.ones(1000)}), window(4000, series={"label": rare})) == {}


def test_in_a_first_span_only_a_feature_that_tells_the_class_alone_stops() -> None:
    assert failed(window(series={"price": np.where(LABELS == 1, values("price"), np.nan)}), NOTHING) == {
        TOLD: "critical"
    }
    assert failed(window(series={"price": values("price") + 20 * LABELS}), NOTHING) == {}


def test_without_a_head_there_is_no_class() -> None:
    assert judge_labels(window(), window(), load_config(None, [SCRATCH, *FEATURES])) == []


def test_the_sentence_has_the_numbers_and_the_way_out(golden: Golden) -> None:
    (one_class, _) = judge_labels(window(seed=1), window(series={"label": np.ones(1000)}), CONFIG)
    golden(one_class.sentence)
    assert "--set validate.labels.one_class.stop=null" in one_class.sentence
