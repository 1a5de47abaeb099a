"""What a seed decides."""

from __future__ import annotations

from collections import Counter

from tasks.contracts.stages import Stage
from tests.benchmarks.chaos.draws import ANYWHERE, draws


def test_every_act_and_every_stage_comes_as_often_as_any_other() -> None:
    some = draws(7, len(ANYWHERE) * len(Stage), 0.5)
    assert set(Counter(draw.act for draw in some).values()) == {len(Stage)}
    assert set(Counter(draw.stage for draw in some).values()) == {len(ANYWHERE)}
    assert {draw.whole for draw in some} == {True, False}


def test_a_run_of_a_seed_is_the_same_in_a_longer_campaign() -> None:
    assert draws(7, 100, 0.5)[:9] == draws(7, 9, 0.5)
    assert draws(8, 9, 0.5) != draws(7, 9, 0.5)
