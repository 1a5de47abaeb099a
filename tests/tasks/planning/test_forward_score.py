"""The champion on the newest span, beside the release that it replaced."""

import pytest

from tasks.contracts.evaluation import ForwardScore, Measurement, Role, SpanMetrics
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Release
from tasks.planning.forward_score import forward_score, judged_releases, seen_by
from tasks.quality.comparisons import Measured
from tests.support.measures.row_results import row_results
from tests.support.workspace.releases import write_release

HIT, MISS = 1, 11
ROWS = 200
MONTH = SpanRef(name="2026-05", version=1)  # release 4 is of 2026-04


def outcome(versions: dict[Role, str], ranks: dict[Role, list[int]], newest: str = MONTH.name) -> EvaluateOutcome:
    recalls = {role: {"recall@10": sum(rank <= 10 for rank in of) / ROWS} for role, of in ranks.items()}
    return EvaluateOutcome(
        holdout_rows=2 * ROWS,
        corpus_items=99,
        challenger={"recall@10": 0.9},
        champion={"recall@10": 0.9},
        champion_version=versions[Role.champion],
        measured=tuple(
            Measurement(role=role, version=version, release=None, metrics={"recall@10": 0.9}, vectors={})
            for role, version in versions.items()
        ),
        spans=(SpanMetrics(span=newest, rows=ROWS, metrics=recalls),),
    )


def score(store, versions: dict[Role, str], span: SpanRef = MONTH, newest: str = MONTH.name) -> ForwardScore | None:
    """Of the rows of the newest span the champion finds 150, the previous 100, and all those of the span before."""
    found = {Role.challenger: 180, Role.champion: 150, Role.previous: 100, Role.untrained: 20}
    new = {role: [HIT] * hits + [MISS] * (ROWS - hits) for role, hits in found.items() if role in versions}
    new[Role.untrained] = [HIT] * 20 + [MISS] * (ROWS - 20)
    of = outcome(versions, new, newest)
    rows = row_results({role: [HIT] * ROWS + ranks for role, ranks in new.items()},
                       span=["2026-04"] * ROWS + [newest] * ROWS)  # fmt: skip
    judged = judged_releases(store, of)
    metrics = {role: rows.metrics(role) for role in rows.roles}
    measured = Measured(metrics, rows, newest=span.name, seen_by=seen_by(judged, span))
    return forward_score(judged, of, measured)


@pytest.fixture
def made(store) -> dict[int, Release]:
    """Four releases, of 2026-01 to 2026-04, each of another model."""
    return {number: write_release(store, number) for number in range(1, 5)}


def test_the_champion_stands_beside_the_release_before_it_with_an_interval(store, made):
    versions = {Role.challenger: "new", Role.champion: made[4].model.version, Role.previous: made[3].model.version}
    found = score(store, versions)
    assert found is not None
    assert (found.release, found.span, found.rows, found.value) == (4, MONTH.name, ROWS, 0.75)
    assert (found.previous, found.previous_value, found.untrained, found.challenger) == (3, 0.5, 0.1, 0.9)
    assert found.low is not None
    assert found.high is not None
    # A quarter of 200 rows differ, all one way: the standard error is sqrt(0.25 * 0.75 / 200) = 0.0306.
    assert found.low == pytest.approx(0.25 - 1.96 * 0.0306, abs=0.01)
    assert found.high == pytest.approx(0.25 + 1.96 * 0.0306, abs=0.01)


def test_without_a_release_before_it_the_score_stands_alone(store, made):
    found = score(store, {Role.challenger: "new", Role.champion: made[1].model.version})
    assert found is not None
    assert (found.release, found.value, found.previous, found.low) == (1, 0.75, None, None)


def test_a_champion_that_has_seen_the_span_has_no_forward_score(store, made):
    """As after a corrected version, or in a backfill, which trains spans again that the champion knows."""
    versions = {Role.challenger: "new", Role.champion: made[4].model.version, Role.previous: made[3].model.version}
    april = SpanRef(name="2026-04", version=2)
    assert score(store, versions, april, newest=april.name) is None
    assert score(store, versions, newest="2026-04") is None, "the newest span has no holdout row"


def test_a_previous_release_that_has_seen_the_span_is_not_compared_with(store, made):
    """As after a rollback to an old release."""
    versions = {Role.challenger: "new", Role.champion: made[3].model.version, Role.previous: made[4].model.version}
    april = SpanRef(name="2026-04", version=1)
    found = score(store, versions, april, newest=april.name)
    assert found is not None
    assert (found.release, found.value, found.previous, found.previous_value) == (3, 0.75, None, None)


def test_a_refresh_counts_as_the_release_that_brought_its_model(store, made):
    refresh = made[4].model_copy(update={"number": 5, "previous": 4, "refreshed": 4, "model_before": 4})
    store.write("releases/5.json", refresh.to_json())
    found = score(store, {Role.challenger: "new", Role.champion: refresh.model.version})
    assert found is not None
    assert found.release == 4
