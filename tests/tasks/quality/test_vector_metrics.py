import numpy as np
import pytest

from tasks.quality import vector_metrics as module
from tasks.quality.vector_metrics import Answers, compatibility_metrics, nearest_items, vector_metrics


def unit(*degrees: float) -> np.ndarray:
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_health_of_known_vectors():
    found = vector_metrics(unit(0, 90, 180, 270), np.arange(4))
    assert found["effective_rank"] == pytest.approx(2.0), "both directions have equal singular values"
    # of the six pairs four are at right angles, two are opposite
    assert found["mean_cosine"] == pytest.approx(-2 / 6)
    assert (found["nan_share"], found["duplicate_share"]) == (0.0, 0.0)


def test_effective_rank_is_e_to_the_entropy_of_the_singular_values():
    vectors = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [0, 1]], dtype=np.float32)  # singular values 2 and 1
    shares = np.array([2, 1]) / 3
    found = vector_metrics(vectors, np.zeros(5, dtype=np.int64))
    assert found["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


def test_a_collapsed_model_is_seen_in_each_number():
    found = vector_metrics(unit(30, 30, 30, 30), np.arange(4))
    assert found == {
        "effective_rank": pytest.approx(1.0),
        "mean_cosine": pytest.approx(1.0),
        "nan_share": 0.0,
        "duplicate_share": 1.0,
    }


def test_items_with_an_equal_text_may_share_their_vector():
    assert vector_metrics(unit(10, 10, 10, 50), np.array([0, 0, 1, 2]))["duplicate_share"] == 0.75
    assert vector_metrics(unit(10, 10, 50), np.array([0, 0, 1]))["duplicate_share"] == 0.0


def test_vectors_that_are_no_numbers_are_counted_and_left_out_of_the_rest():
    vectors = unit(0, 90, 45)
    vectors[2, 1] = np.nan
    found = vector_metrics(vectors, np.arange(3))
    assert found["nan_share"] == pytest.approx(1 / 3)
    assert found["mean_cosine"] == pytest.approx(0.0, abs=1e-7)
    broken = vector_metrics(np.full((3, 2), np.nan, dtype=np.float32), np.arange(3))
    assert broken["nan_share"] == 1.0
    assert np.isnan([broken["effective_rank"], broken["mean_cosine"], broken["duplicate_share"]]).all()


def test_compatibility_of_known_models(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "NEIGHBOURS", 2)
    before, after, queries = unit(0, 60, 120, 180), unit(0, 90, 30, 180), unit(0, 180)
    ours = Answers(after, nearest_items(queries, after))
    theirs = Answers(before, nearest_items(queries, before))
    found = compatibility_metrics(ours, theirs)
    assert found["same_item_cosine"] == pytest.approx((1 + np.cos(np.pi / 6) + 0 + 1) / 4)
    # at 0 degrees {0, 1} became {0, 2}; at 180 {2, 3} became {1, 3}
    assert found["neighbour_overlap@10"] == pytest.approx(0.5)


def test_models_of_other_widths_agree_in_their_neighbours_alone():
    wider = np.eye(3, dtype=np.float32)
    one, other = Answers(unit(0, 90, 180), np.array([[0, 1]])), Answers(wider, np.array([[1, 0]]))
    assert compatibility_metrics(one, other) == {"neighbour_overlap@10": 1.0}


def test_nearest_items_of_a_small_corpus_are_all_and_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(3)
    queries, corpus = random.normal(size=(7, 4)).astype(np.float32), random.normal(size=(30, 4)).astype(np.float32)
    expected = np.sort(np.argsort(-(queries @ corpus.T), axis=1)[:, :10], axis=1)
    monkeypatch.setattr(module, "CHUNK_SCORES", 60)
    assert (np.sort(nearest_items(queries, corpus), axis=1) == expected).all()
    assert nearest_items(queries, corpus[:3]).shape == (7, 3)
