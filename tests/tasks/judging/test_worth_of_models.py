"""Differences between released models, added up along their comparisons."""

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.judging.rivals import paired_difference, worth_of_models
from tasks.runs import releases
from tasks.runs.results import UnusableResult, read_result
from tests.support.workspace.past import write_past

RECALL = "recall@10"


def made(store: DirectoryStore, *values: tuple[float, float, int | None]) -> list[Release]:
    """One release for each evaluation, newest first: recall of challenger and champion, and the champion's number."""
    write_past(store, len(values))
    found = [releases.read(store, number) for number in range(1, len(values) + 1)]
    for release, (challenger, champion, than) in zip(found, values, strict=True):
        evaluated(
            store,
            release,
            challenger={RECALL: challenger},
            champion={RECALL: champion} if than else None,
            champion_version=found[than - 1].model.version if than else None,
        )
    return found[::-1]


def evaluated(store: DirectoryStore, release: Release, **outcome: object) -> None:
    result = read_result(store, release.run_key, Stage.evaluate)
    assert result is not None
    changed = result.model_copy(update={"outcome": result.outcome.model_copy(update=outcome)})
    store.write(RESULT.key(run=release.run_key, stage=Stage.evaluate), changed.to_json())


def worth(store: DirectoryStore, found: list[Release]) -> dict[int, float]:
    """By the number of the release, next to the newest one."""
    by_version = worth_of_models(store, found, found[0], RECALL, 0.5)
    return {
        release.number: by_version[release.model.version] for release in found if release.model.version in by_version
    }


@pytest.mark.parametrize(
    ("challenger", "champion", "difference"),
    [
        ({RECALL: 0.5}, {RECALL: 0.25}, 0.25),
        ({RECALL: 0.5}, None, None),
        ({"mrr@10": 0.5}, {RECALL: 0.25}, None),
        ({RECALL: float("nan")}, {RECALL: 0.25}, None),
    ],
)
def test_a_difference_is_of_two_finite_numbers_on_the_same_rows(challenger, champion, difference):
    outcome = EvaluateOutcome(
        holdout_rows=1, corpus_items=1, challenger=challenger, champion=champion, champion_version="m"
    )
    assert paired_difference(outcome, RECALL, 0.5) == difference
    few = {"catalogue_items": 10, "shared_items": {Role.champion: 4}}
    assert paired_difference(outcome.model_copy(update=few), RECALL, 0.5) is None


def test_values_of_different_rows_say_nothing_and_differences_add_up(store: DirectoryStore):
    """The catalogue grows and recall falls, though each release but the last is better than the one before."""
    found = made(store, (0.944, 0, None), (0.934, 0.914, 1), (0.914, 0.871, 2), (0.902, 0.899, 3), (0.84, 0.85, 4))
    assert worth(store, found) == {5: 0.0, 4: 0.01, 3: 0.007, 2: -0.036, 1: -0.056}


def test_differences_that_cancel_out_leave_equal_models(store: DirectoryStore):
    """In floating point they leave a rest, and the older one would be the best."""
    found = made(store, (0.7, 0, None), (0.8, 0.7, 1), (0.6, 0.7, 2), (0.3, 0.2, 3))
    assert worth(store, found) == {4: 0.0, 3: -0.1, 2: 0.0, 1: -0.1}


def test_after_a_rollback_they_go_on_from_the_champion_and_not_from_the_number_before(store: DirectoryStore):
    found = made(store, (0.5, 0, None), (0.2, 0.5, 1), (0.51, 0.5, 1))
    assert worth(store, found) == {3: 0.0, 2: -0.31, 1: -0.01}


def test_a_release_whose_evaluation_is_gone_cuts_the_chain(store: DirectoryStore):
    found = made(store, (0.5, 0, None), (0.6, 0.5, 1), (0.9, 0.6, 2), (0.4, 0.5, 3))
    store.delete(RESULT.key(run=found[1].run_key, stage=Stage.evaluate))
    assert worth(store, found) == {4: 0.0, 3: 0.1}, "release 3 is known through release 4, those before it are not"
    store.write(RESULT.key(run=found[2].run_key, stage=Stage.evaluate), b"{")
    with pytest.raises(UnusableResult, match=found[2].run_key):
        worth(store, found)


def test_evaluations_in_a_circle_come_to_an_end(store: DirectoryStore):
    """One that is repeated after later releases has the newest of them as its champion."""
    found = made(store, (0.5, 0, None), (0.6, 0.5, 3), (0.7, 0.6, 2), (0.7, 0.7, 3))
    assert worth(store, found) == {4: 0.0, 3: 0.0, 2: -0.1}
