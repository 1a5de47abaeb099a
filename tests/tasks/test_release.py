import pytest

from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.stages import Stage
from tasks.foundation.errors import HostError
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tasks.runs.rollback import rollback
from tasks.train import model_of
from tasks.validate import catalogue_of
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.stages import carry_out


def test_a_release_names_a_model_and_the_vectors_it_made(store, runner):
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    assert run.inferred is not None
    assert run.released == releases.current(store)
    assert run.released is not None
    assert run.released.catalogue is not None
    assert run.released.model == model_of(run.trained)
    assert run.released.model_prefix == f"models/{run.trained.model_version}"
    assert run.released.vectors_prefix == run.inferred.prefix
    assert run.released.vectors == run.inferred.vectors == run.released.catalogue.items
    assert run.released.metrics == run.judged.outcome.challenger
    assert (run.released.span, run.released.run_key) == (plan.span, plan.run_key)


def test_the_worker_gets_the_vectors_to_compare_the_export_with(store, runner):
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    assert run.inferred is not None
    assert runner.specs[-1].inputs == ReleaseInputs(
        model=model_of(run.trained),
        vectors=run.inferred.prefix,
        catalogue=catalogue_of(plan, run.validated),
        rows=run.validated.rows,
        metrics=run.judged.outcome.challenger,
        by_queries=run.judged.outcome.by_queries[Role.challenger],
    )


def test_nothing_is_published_before_the_export_succeeds(store, runner):
    runner.fail(Stage.release, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan_run(store, small_config()))
    assert releases.history(store) == []
    carry_out(plan_run(store, small_config(), "2021-Q1"))
    assert len(releases.history(store)) == 1


def test_repeating_a_run_undoes_no_later_release_and_no_rollback(store, runner):
    carry_out(plan_run(store, small_config()))
    second = carry_out(plan_run(store, small_config()))
    carry_out(plan_run(store, small_config(), "2021-Q1"))
    assert releases.current(store) == second.released
    first = rollback(store)
    carry_out(plan_run(store, small_config(), "2021-Q2"))
    assert releases.current(store) == first
