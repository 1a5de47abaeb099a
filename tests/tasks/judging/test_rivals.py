"""Released models beside challenger and champion, and the forward score on the newest span."""

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import ForwardScore, Measurement, Role, SpanMetrics
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.judging.rivals import begun_with, forward_score, judged_releases, rivals_for, seen_by
from tasks.planning.next_run import plan_run
from tasks.quality.comparisons import Measured
from tasks.runs import branches, lineage, releases
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.measures.results import row_results
from tests.support.workspace.releases import write_release

CONFIG = small_config()


def released(store: DirectoryStore, runner: FakeRunner, recall: float, champion: float = 0.4) -> Release:
    """The release of one more run, whose evaluation found these values on its own rows."""
    runner.metrics = {"recall@10": recall, "mrr@10": 0.3}
    runner.of_champion = {"recall@10": champion, "mrr@10": 0.3}
    release = carry_out(plan_run(store, CONFIG)).released
    assert release is not None
    return release


def best(store: DirectoryStore, challenger: Release) -> int | None:
    return roles(store, challenger).get(Role.best)


def roles(store: DirectoryStore, challenger: Release) -> dict[Role, int]:
    return {rival.role: rival.release for rival in rivals_for(store, CONFIG, challenger.model)}


def test_without_a_release_there_is_no_rival(store: DirectoryStore, runner: FakeRunner):
    only = released(store, runner, 0.5)
    assert roles(store, only) == {}, "a run's own release is none"


def test_the_first_release_and_the_best(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, *of) for of in ((0.5,), (0.7, 0.6), (0.6, 0.6)))
    assert roles(store, three) == {Role.previous: one.number, Role.first: one.number, Role.best: two.number}
    (_, first, best) = rivals_for(store, CONFIG, three.model)
    assert (first.vectors, best.model) == (one.vectors_prefix, two.model)


def test_the_previous_release_is_what_the_champion_replaced_with_its_newest_vectors(store, runner: FakeRunner):
    ingest(store, "2021-Q4")
    one = released(store, runner, 0.5)
    ingest_feed(store, "2021-01")
    refreshed_one = refreshed(store)
    two, three, four = (released(store, runner, 0.5) for _ in range(3))
    (previous, *_) = rivals_for(store, CONFIG, three.model)
    assert previous.release == two.number, "a challenger that is a release already is neither champion nor previous"
    rollback(store, to=two.number)
    (previous, *_) = rivals_for(store, CONFIG, four.model)
    assert (previous.role, previous.model) == (Role.previous, one.model)
    assert (previous.release, previous.vectors) == (refreshed_one.number, refreshed_one.vectors_prefix)
    lineage.prune_checkpoint(store, one.model.checkpoint.prefix)
    assert Role.previous not in roles(store, four), "the one before that is not what the champion replaced"


def test_after_a_rollback_the_release_that_was_taken_back_is_not_the_previous_one(store, runner: FakeRunner):
    one, two = (released(store, runner, 0.5) for _ in range(2))
    rollback(store, to=one.number)
    three = released(store, runner, 0.5)
    assert releases.current(store) == three
    challenger = three.model.model_copy(update={"version": "new"})
    assert {each.role: each.release for each in rivals_for(store, CONFIG, challenger)}[Role.previous] == one.number
    assert two.number == 2


def test_a_high_value_on_an_easy_holdout_is_not_the_best(store: DirectoryStore, runner: FakeRunner):
    """The catalogue grows and recall falls, though each release is better than the one before on the same rows."""
    _, two, three = (released(store, runner, *of) for of in ((0.944,), (0.934, 0.914), (0.914, 0.9)))
    assert best(store, three) == two.number


def test_of_equal_ones_the_newest_is_the_best(store: DirectoryStore, runner: FakeRunner):
    _, two, three = (released(store, runner, *of) for of in ((0.5,), (0.5, 0.5), (0.5, 0.5)))
    assert best(store, three) == two.number


def test_small_losses_add_up(store: DirectoryStore, runner: FakeRunner):
    ingest(store, "2021-Q4")
    one, *_, four = (released(store, runner, *of) for of in ((0.5,), (0.797, 0.8), (0.897, 0.9), (0.997, 1.0)))
    assert best(store, four) == one.number, "each later value is higher, and each model worse than the one before"


def test_after_a_rollback_the_best_is_found_from_the_release_that_serves(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, *of) for of in ((0.5,), (0.6, 0.5), (0.7, 0.6)))
    store.delete(RESULT.key(run=three.run_key, stage=Stage.evaluate))
    assert best(store, one) == three.number, "nothing is known of the others next to it"
    rollback(store, to=two.number)
    assert best(store, one) == two.number


def test_the_best_is_chosen_by_the_first_ranking_gate(store: DirectoryStore, runner: FakeRunner):
    gate = "{metric: mrr@10, direction: higher, threshold: 0, baseline: best, severity: warning}"
    config = small_config(f"evaluate.gates=[{gate}]")
    one, two, three = (released(store, runner, *of) for of in ((0.5,), (0.498, 0.5), (0.5,)))
    assert {each.role: each.release for each in rivals_for(store, config, three.model)}[Role.best] == two.number
    assert best(store, three) == one.number


def test_a_refresh_is_no_other_model(store: DirectoryStore, runner: FakeRunner):
    one = released(store, runner, 0.5)
    ingest_feed(store, "2021-01")
    refreshed(store)
    two = released(store, runner, 0.5)
    assert roles(store, two) == {Role.first: one.number, Role.best: one.number}


def test_a_model_whose_checkpoint_was_deleted_cant_be_measured(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, *of) for of in ((0.7,), (0.398, 0.4), (0.5,)))
    lineage.prune_checkpoint(store, one.model.checkpoint.prefix)
    assert roles(store, three) == {Role.best: two.number}, "the second release is not the first"


def test_other_lineages_have_rivals_of_their_own(store: DirectoryStore, runner: FakeRunner):
    one, two = (released(store, runner, *of) for of in ((0.7,), (0.6,)))
    elsewhere = CONFIG.model_copy(update={"lineage": "elsewhere"})
    assert rivals_for(store, elsewhere, two.model) == ()
    branches.begin(store, "elsewhere", CONFIG.lineage, one.model.checkpoint)
    shared = [rival.release for rival in rivals_for(store, elsewhere, two.model)]
    assert shared == [one.number] * 2, "a branch is the same lineage"


@pytest.mark.parametrize("base", [True, False])
def test_imported_weights_are_those_that_the_lineage_began_with(store: DirectoryStore, base: bool):
    assert begun_with(store, CONFIG) is None
    prefix = f"lineages/{CONFIG.lineage}/step-00000000"
    manifest = commit_files(store, prefix, {"model.safetensors": "weights"}, "checkpoint")
    imported = CheckpointRef(prefix=prefix, step=0, sha256=manifest.sha256)
    assert begun_with(store, CONFIG) == imported
    branches.begin(store, "again", CONFIG.lineage, imported if base else None)
    again = CONFIG.model_copy(update={"lineage": "again"})
    assert begun_with(store, again) == (imported if base else None), "a branch without a base begins with a new model"


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
    assert found.rows == ROWS
    assert [numbers.rows for numbers in found.parts.values()] == [ROWS]


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
