"""A first plan grows where the work does: with the rows, the rows before them, or the items."""

from __future__ import annotations

from pathlib import Path

import pytest

import configs
from configs.load import load_config, with_overrides
from configs.schema.config import Config
from tasks.contracts.stages import Stage
from tasks.laboratory.encoding_time import Known, Load
from tasks.laboratory.machine_plan import Asked, stage_cost
from tasks.monitoring.estimates import Past

ROOT = Path(configs.__file__).parent
CONFIG = load_config(ROOT / "trainium.yaml", ["model.scratch.hidden_size=768", "model.scratch.attention_heads=12"])
USUAL = Load(rows=(1_000_000,), tokens=96e6, steps=488, items=1_000_000, earlier=1_000_000)


def seconds(stage: Stage, load: Load, nodes: int = 1, config: Config = CONFIG) -> float:
    found = stage_cost(Known(Past((), {})), config, stage, load, Asked(nodes=nodes)).seconds
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("more", "grown"),
    [
        (USUAL._replace(rows=(10_000_000,), tokens=960e6, steps=4_880), {Stage.validate, Stage.train}),
        (USUAL._replace(earlier=51_000_000), {Stage.validate}),
        (USUAL._replace(items=10_000_000), {Stage.evaluate, Stage.infer, Stage.release}),
    ],
    ids=["rows", "history", "items"],
)
def test_a_stage_grows_with_its_own_amount_alone(more: Load, grown: set[Stage]) -> None:
    """Ten million rows were validated in two minutes by the plan, as was one."""
    assert {stage for stage in Stage if seconds(stage, more) > seconds(stage, USUAL)} == grown


def test_a_year_of_history_costs_the_accelerators_nothing_also_if_they_replay_it() -> None:
    """Of keys, and of no text: 51 weeks before add less than two weeks of new rows do."""
    year = USUAL._replace(earlier=51_000_000)
    for config in (CONFIG, with_overrides(CONFIG, ["train.replay=0.1"])):
        assert seconds(Stage.train, year, config=config) == seconds(Stage.train, USUAL, config=config)
        assert seconds(Stage.validate, year, config=config) > seconds(Stage.validate, USUAL, config=config)


def test_machines_share_the_search_of_an_evaluation() -> None:
    many = USUAL._replace(items=100_000_000)
    one, four = (seconds(Stage.evaluate, many, nodes) for nodes in (1, 4))
    fixed = seconds(Stage.evaluate, USUAL._replace(items=0))
    assert one - fixed == pytest.approx(4 * (four - fixed))


def test_machines_of_release_share_vectors_and_products() -> None:
    """Beside them the first one reads the ids and hashes of all items."""
    many = USUAL._replace(items=100_000_000)
    one, four, eight = (
        seconds(Stage.release, many, config=with_overrides(CONFIG, [f"release.workers={workers}"]))
        for workers in (1, 4, 8)
    )
    shared = 8 * (four - eight)
    assert one - four == pytest.approx(0.75 * shared - 2 * 100_000_000 * 43 / 1.25e8)


def test_machines_of_validate_share_the_history_and_nothing_else() -> None:
    """Of it the first one also reads what the others have found; without one they only write and read keys."""
    year = USUAL._replace(rows=(50_000_000,), earlier=2_550_000_000)
    eight = with_overrides(CONFIG, ["validate.workers=8"])
    week, week_of_eight, one, many = (
        seconds(Stage.validate, load, config=config)
        for load in (year._replace(earlier=0), year)
        for config in (CONFIG, eight)
    )
    assert 0 < week_of_eight - week < 120
    found = 10 * 50_000_000 * (0.7e-6 + 24 / 1.25e8)
    assert many - week_of_eight == pytest.approx((one - week) / 8 + found)
