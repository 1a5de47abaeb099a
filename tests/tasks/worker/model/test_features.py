"""Features as model input: scales, vocabularies, and values that are absent or new."""

import tempfile
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from configs.schema.model import FeaturesConfig
from tasks.worker.model import features
from tasks.worker.model.features import FeatureTable, Scale, can_extend, encode_features, extend_features, fit_features

ROWS = pa.table(
    {
        "price": pa.array([1.0, None, 3.0, 5.0]),
        "weight": pa.array([2.0, 2.0, 2.0, 2.0]),
        "locale": ["en", "de", None, "en"],
        "gift": pa.array([True, False, None, True]),
    }
)
CONFIG = FeaturesConfig(numeric=("price", "weight"), categorical=("locale", "gift"), query=("locale",))


def test_scales_are_of_the_known_values():
    table = fit_features([ROWS], CONFIG)
    assert table.numeric["price"].mean == pytest.approx(3.0)
    assert table.numeric["price"].deviation == pytest.approx((8 / 3) ** 0.5)
    assert table.numeric["weight"].deviation == 1.0, "a constant column must not divide by zero"


def test_vocabularies_are_sorted_and_have_spare_places():
    table = fit_features([ROWS], CONFIG)
    assert table.categorical == {"locale": ("de", "en"), "gift": ("false", "true")}
    assert table.categories == [8, 8]


def test_items_have_all_features():
    arrays = encode_features(fit_features([ROWS], CONFIG), ROWS, "item")
    deviation = (8 / 3) ** 0.5
    assert arrays.numeric[:, 0].tolist() == pytest.approx([-2 / deviation, 0.0, 0.0, 2 / deviation])
    assert arrays.numeric[:, 1].tolist() == [0.0] * 4
    assert arrays.categorical.tolist() == [[3, 3], [2, 2], [0, 0], [3, 3]]
    assert (arrays.numeric.dtype, arrays.categorical.dtype) == (np.float32, np.int64)


def test_queries_have_only_the_features_listed_for_them():
    arrays = encode_features(fit_features([ROWS], CONFIG), ROWS, "query")
    assert not arrays.numeric.any()
    assert arrays.categorical.tolist() == [[3, 0], [2, 0], [0, 0], [3, 0]]


def test_a_category_never_seen_is_not_an_absent_one():
    later = pa.table({"price": [3.0], "weight": [2.0], "locale": ["fr"], "gift": pa.array([None], pa.bool_())})
    assert encode_features(fit_features([ROWS], CONFIG), later, "item").categorical.tolist() == [[1, 0]]


def test_vocabularies_grow_at_their_end():
    table = fit_features([ROWS], CONFIG)
    numbers = {name: pa.array([None] * 4, pa.float64()) for name in ("price", "weight")}
    later = pa.table({"locale": ["fr", "at", "en", None], "gift": pa.array([True, True, True, True]), **numbers})
    grown = extend_features(table, [later])
    assert grown.categorical == {"locale": ("de", "en", "at", "fr"), "gift": ("false", "true")}
    assert grown.categories == [8, 8], "spare rows are used before the shape changes"
    numbers = {name: pa.array([None] * 7, pa.float64()) for name in ("price", "weight")}
    many = pa.table({"locale": [f"l{n}" for n in range(7)], "gift": pa.array([True] * 7), **numbers})
    assert extend_features(table, [many]).categories == [16, 8]
    assert extend_features(grown, [later]) == grown
    new = can_extend(table, later)
    assert new.tolist() == [True, True, False, False]
    assert extend_features(table, [later.filter(pa.array(new))]) == grown


def test_numbers_are_clipped_to_the_first_rows_quantiles():
    values = [*np.linspace(0.0, 1.0, 5000).tolist(), 1e9]
    config = FeaturesConfig(numeric=("price",), categorical=(), query=())
    table = fit_features([pa.table({"price": values})], config)
    scale = table.numeric["price"]
    assert scale.low == pytest.approx(0.001, abs=3e-4)
    assert scale.high == pytest.approx(0.999, abs=3e-4)
    assert scale.mean == pytest.approx(0.5, abs=1e-3), "one wrong price must not set the scale"
    late = pa.table({"price": [-5.0, 1e12]})
    found = encode_features(table, late, "item").numeric[:, 0].tolist()
    assert found == pytest.approx(
        [(scale.low - scale.mean) / scale.deviation, (scale.high - scale.mean) / scale.deviation]
    )


def test_a_column_of_nulls_is_always_the_mean():
    rows = pa.table({"price": pa.array([None, None], pa.float64())})
    table = fit_features([rows], FeaturesConfig(numeric=("price",), categorical=(), query=()))
    assert encode_features(table, rows, "item").numeric.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("first", [[None, None], [5.0, 5.0], [0.0] * 5000 + [1.0]])
def test_a_column_without_values_that_differ_is_0_until_a_run_fixes_its_scale(first: list[float | None]):
    """Raw values would be thousands of times larger than any other input, and clipped ones would be 0 for ever."""
    config = FeaturesConfig(numeric=("price",), categorical=(), query=())
    table = fit_features([pa.table({"price": pa.array(first, pa.float64())})], config)
    prices = [*np.linspace(1e4, 3e4, 999).tolist(), None]
    later = pa.table({"price": pa.array(prices, pa.float64())})
    assert not encode_features(table, later, "item").numeric.any(), "the model has not learnt to read it"
    assert can_extend(table, later).tolist() == [True] * 999 + [False]
    again = extend_features(table, [later])
    found = encode_features(again, later, "item").numeric[:, 0]
    assert found[:-1].std() == pytest.approx(1.0, abs=0.01)
    assert np.abs(found).max() < 2
    assert found[-1] == 0.0
    assert not can_extend(again, later).any()
    assert extend_features(again, [pa.table({"price": [1e9, 2e9]})]) == again, "it is fixed once"
    assert extend_features(table, [pa.table({"price": [7.0, 7.0]})]) == table


def test_an_older_checkpoint_whose_column_had_no_value_is_read_as_flat():
    assert Scale.model_validate_json('{"mean": 0.0, "deviation": 1.0, "low": null, "high": null}').is_flat


def test_the_table_reads_back_from_json():
    table = fit_features([ROWS], CONFIG)
    assert FeatureTable.model_validate_json(table.to_json()) == table


PARTS, PART = 200, 2_000


def test_the_scale_of_many_values_is_exact_and_takes_the_memory_of_some(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features, "READ_VALUES", 1_000)
    random = np.random.default_rng(3)
    whole = np.exp(2 * random.standard_normal((PARTS, PART))) - 5
    whole[:50] = np.sort(whole[:50].ravel()).reshape(50, PART)  # the lowest ones come together
    whole[7, ::3] = np.nan
    known = whole[~np.isnan(whole)]
    with tempfile.TemporaryFile() as file:
        tracemalloc.start()
        for part in whole:
            features.add_values(file, part)
        scale = features.scale_of(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    low, high = np.quantile(known, 0.001, method="lower"), np.quantile(known, 0.999, method="higher")
    clipped = np.clip(known, low, high)
    assert (scale.low, scale.high) == (low, high)
    assert scale.mean == pytest.approx(clipped.mean(), rel=1e-12)
    assert scale.deviation == pytest.approx(clipped.std(), rel=1e-12)
    assert peak_bytes < known.nbytes / 20
