import pyarrow as pa
import pytest

from tasks.worker.model.features import FeatureTable, Scale, encode_features
from tasks.worker.model.released_modules import FeatureTransformer

TABLE = FeatureTable(
    numeric={
        "price": Scale(mean=10.0, deviation=4.0, low=9.5, high=11.5),
        "sale": Scale(mean=0.5, deviation=0.5, low=0.0, high=1.0),
    },
    categorical={"locale": ("de", "en"), "gift": ("false", "true"), "stars": ("0.5", "4", "5")},
    query=(),
    rows={"locale": 8, "gift": 8, "stars": 8},
)


@pytest.mark.parametrize(
    "record",
    [
        {"price": 12.0, "sale": True, "locale": "en", "gift": True, "stars": 5.0},
        {"price": 10.0, "sale": False, "locale": "de", "gift": False, "stars": 0.5},
        {"price": None, "sale": None, "locale": None, "gift": None, "stars": None},
        {"price": float("nan"), "sale": True, "locale": "fr", "gift": True, "stars": 3.0},
    ],
)
def test_features_are_encoded_as_in_training(record: dict):
    types = {
        "price": pa.float64(),
        "sale": pa.bool_(),
        "locale": pa.string(),
        "gift": pa.bool_(),
        "stars": pa.float64(),
    }
    rows = pa.table({name: pa.array([record[name]], kind) for name, kind in types.items()})
    trained = encode_features(TABLE, rows, "item")
    released = object.__new__(FeatureTransformer)
    object.__setattr__(released, "table", TABLE.model_dump(mode="json"))
    assert released._numeric(record) == pytest.approx(trained.numeric[0].tolist())
    assert released._categorical(record) == trained.categorical[0].tolist()


def test_features_left_out_are_unknown():
    released = object.__new__(FeatureTransformer)
    object.__setattr__(released, "table", TABLE.model_dump(mode="json"))
    assert released._numeric({"text": "a lamp"}) == [0.0, 0.0]
    assert released._categorical({"text": "a lamp"}) == [0, 0, 0]
