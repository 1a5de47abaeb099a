import numpy as np
import pyarrow as pa
import pytest

from configs.schema.training import FeaturesConfig
from tasks.worker.model.features import FeatureTable, encode_features, fit_features

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


def test_vocabularies_are_sorted_and_have_one_place_for_unknown():
    table = fit_features([ROWS], CONFIG)
    assert table.categorical == {"locale": ("de", "en"), "gift": ("false", "true")}
    assert table.categories == [3, 3]


def test_items_have_all_features():
    arrays = encode_features(fit_features([ROWS], CONFIG), ROWS, "item")
    deviation = (8 / 3) ** 0.5
    assert arrays.numeric[:, 0].tolist() == pytest.approx([-2 / deviation, 0.0, 0.0, 2 / deviation])
    assert arrays.numeric[:, 1].tolist() == [0.0] * 4
    assert arrays.categorical.tolist() == [[2, 2], [1, 1], [0, 0], [2, 2]]
    assert (arrays.numeric.dtype, arrays.categorical.dtype) == (np.float32, np.int64)


def test_queries_have_only_the_features_listed_for_them():
    arrays = encode_features(fit_features([ROWS], CONFIG), ROWS, "query")
    assert not arrays.numeric.any()
    assert arrays.categorical.tolist() == [[2, 0], [1, 0], [0, 0], [2, 0]]


def test_a_new_category_is_unknown():
    later = pa.table({"price": [3.0], "weight": [2.0], "locale": ["fr"], "gift": pa.array([True])})
    assert encode_features(fit_features([ROWS], CONFIG), later, "item").categorical.tolist() == [[0, 2]]


def test_a_column_of_nulls_is_always_the_mean():
    rows = pa.table({"price": pa.array([None, None], pa.float64())})
    table = fit_features([rows], FeaturesConfig(numeric=("price",), categorical=(), query=()))
    assert encode_features(table, rows, "item").numeric.tolist() == [[0.0], [0.0]]


def test_the_table_reads_back_from_json():
    table = fit_features([ROWS], CONFIG)
    assert FeatureTable.model_validate_json(table.to_json()) == table
