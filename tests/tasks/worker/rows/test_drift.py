import math

import numpy as np
import pandas as pd
import pytest

from tasks.worker.rows.drift import MISSING, NEVER_SEEN, OTHERS, category_stability, population_stability


def test_equal_distributions_do_not_drift():
    values = np.random.default_rng(3).normal(size=500)
    assert population_stability(values, values).psi == pytest.approx(0.0)


def test_the_index_of_two_classes():
    earlier = np.array([0.0] * 50 + [1.0] * 50)
    now = np.array([0.0] * 25 + [1.0] * 75)
    drift = population_stability(earlier, now)
    assert drift.psi == pytest.approx(-0.25 * math.log(0.5) + 0.25 * math.log(1.5))
    assert len(drift.bins) == 2
    assert drift.by_chance == pytest.approx(1 / 100 + 1 / 100)


@pytest.mark.parametrize(("rows", "least"), [(100, 0.005), (20_000, 1e-4)])
def test_an_empty_bin_counts_as_half_a_row_or_as_one_in_ten_thousand(rows: int, least: float):
    earlier = np.array([0.0, 1.0] * (rows // 2))
    drift = population_stability(earlier, np.zeros(rows))
    assert drift.psi == pytest.approx(0.5 * math.log(2) + (least - 0.5) * math.log(least / 0.5))


def test_deciles_of_the_earlier_rows_are_the_bins():
    earlier, now = np.arange(1000.0), np.arange(500.0)
    drift = population_stability(earlier, now)
    # five deciles go from 0.1 to 0.2, five from 0.1 to nothing
    assert len(drift.bins) == 10
    assert drift.psi == pytest.approx(5 * 0.1 * math.log(2) + 5 * (1e-3 - 0.1) * math.log(1e-2))


@pytest.mark.parametrize(("centre", "spread"), [(1.5, 1.0), (0.0, 4.0)])
def test_a_shift_or_a_spread_is_seen(centre: float, spread: float):
    generator = np.random.default_rng(3)
    drift = population_stability(generator.normal(size=400), generator.normal(centre, spread, size=400))
    assert drift.psi > 0.25


def test_samples_of_one_distribution_have_the_index_of_chance():
    generator = np.random.default_rng(3)
    drifts = [population_stability(generator.exponential(size=300), generator.exponential(size=300)) for _ in range(40)]
    assert np.mean([d.psi for d in drifts]) == pytest.approx(drifts[0].by_chance, rel=0.35)


def test_nulls_have_their_own_bin():
    labels = np.array([1.0, 2.0] * 50)
    assert population_stability(labels, np.where(np.arange(100) < 50, labels, np.nan)).psi > 0.25


def test_a_new_constant_value_is_drift():
    assert population_stability(np.full(100, 5.0), np.full(100, 6.0)).psi > 0.25


def test_only_nulls_on_both_sides_are_no_drift():
    drift = population_stability(np.full(60, np.nan), np.full(60, np.nan))
    assert drift.psi == 0.0
    assert len(drift.bins) == 1


def test_names_have_bins_for_the_commonest_the_others_the_new_and_none():
    earlier = pd.Series([f"c{number:02d}" for number in range(25) for _ in range(30 - number)], dtype=object)
    now = pd.Series(["c00"] * 60 + ["c24"] * 20 + ["new"] * 15 + [None] * 5, dtype=object)
    bins = {each.label: (each.earlier, each.now) for each in category_stability(earlier, now).bins}
    assert len(bins) == 20 + 3
    assert bins["c00"] == (round(30 / 450, 6), 0.6)
    assert bins[OTHERS] == (round((10 + 9 + 8 + 7 + 6) / 450, 6), 0.2)
    assert (bins[NEVER_SEEN], bins[MISSING]) == ((0.0, 0.15), (0.0, 0.05))
    assert category_stability(earlier, earlier).psi == pytest.approx(0.0)


@pytest.mark.parametrize(("rows", "brands"), [(50, 15), (500, 200), (500, 2000)])
def test_samples_of_the_same_brands_are_no_drift_though_each_has_some_of_its_own(rows: int, brands: int):
    """Of 200 brands by Zipf's law, 500 rows lack a few that the next 500 have."""
    generator, share = np.random.default_rng(5), 1 / np.arange(1, brands + 1)
    samples = [
        pd.Series(generator.choice(brands, rows, p=share / share.sum()).astype(str), dtype=object) for _ in range(80)
    ]
    drifts = [category_stability(*two) for two in zip(samples[::2], samples[1::2], strict=True)]
    assert np.mean([drift.psi > 0.25 + drift.by_chance for drift in drifts]) <= 0.1


def test_a_new_brand_of_many_rows_is_drift_among_brands_that_are_new_as_usual():
    generator, share = np.random.default_rng(6), 1 / np.arange(1, 201)
    earlier, now = (generator.choice(200, 500, p=share / share.sum()).astype(str).astype(object) for _ in range(2))
    placeholder = np.where(np.arange(500) % 3 == 0, "unknown", now)
    drift = category_stability(pd.Series(earlier), pd.Series(placeholder))
    assert drift.psi > 0.25 + drift.by_chance
