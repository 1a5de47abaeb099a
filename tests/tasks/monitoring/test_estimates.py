"""How long work should take, with known medians."""

import pytest

from configs.schema.operations import LOCAL_WORKER
from infra.store.directory import DirectoryStore
from tasks.contracts.costs import StageCost
from tasks.contracts.outcomes import Phases
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import DataError, FailureClass
from tasks.monitoring.estimates import Facts, Past, past, run_cost, stage_cost, work_cost
from tasks.planning.next_run import plan_run
from tasks.runs import lineage
from tasks.runs.ledger import LedgerRecord
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, commit_files, small_config
from tests.support.fakes.stages import carry_out


def record(
    number: int,
    seconds: float,
    *,
    stage: Stage = Stage.train,
    overhead: float = 0.0,
    workers: int = 1,
    failure: FailureClass | None = None,
    ended: bool = True,
) -> LedgerRecord:
    """An attempt of run `r<number>` with `seconds` of work and `overhead` in the queue."""
    return LedgerRecord(
        run_key=f"r{number}",
        span="2021-Q1",
        stage=stage,
        attempt=1,
        failure=failure,
        message="",
        started_at=f"2026-01-{number:02d}T06:00:00.000000+00:00",
        ended_at=f"2026-01-{number:02d}T07:00:00.000000+00:00" if ended else None,
        seconds=Phases(queued=overhead, productive=seconds),
        workers=workers,
        machines=workers,
        instance=LOCAL_WORKER,
        price=None,
    )


def estimate(
    *records: LedgerRecord,
    past_rows: dict[str, tuple[int, ...]] | None = None,
    stage: Stage = Stage.train,
    rows: tuple[int, ...] | None = None,
    workers: int = 1,
    settings: tuple[str, ...] = (),
) -> StageCost:
    config = small_config(f"train.workers={workers}", *settings)
    facts = {key: Facts(config, each) for key, each in (past_rows or {}).items()}
    return stage_cost(Past(records, facts), config, stage, rows)


def test_the_median_is_of_wall_time_with_the_queue():
    known = [record(1, 10, overhead=5), record(2, 20, overhead=1), record(3, 90, overhead=9)]
    assert estimate(*known).seconds == 21.0


def test_only_the_last_five_successful_attempts_count():
    slow_once = [record(number, 1000) for number in (1, 2, 3)]
    now = [record(number, 10 * number) for number in (4, 5, 6, 7, 8)]
    failed = [record(9, 5000, failure=FailureClass.HOST), record(10, 5000, ended=False)]
    found = estimate(*failed, *now, *slow_once)
    assert (found.seconds, found.attempts_seen) == (60.0, 5)


def test_work_is_scaled_by_rows_and_waiting_is_not():
    rows = {"r1": (100,), "r2": (400,)}
    # r1: 7 s of waiting and 10 s for 100 rows; r2: 1 s and 40 s for 400. For 200 rows that is 27 and 21.
    found = estimate(record(1, 10, overhead=7), record(2, 40, overhead=1), past_rows=rows, rows=(200,))
    assert found.seconds == 24.0


def test_an_attempt_with_unknown_rows_is_not_scaled():
    assert estimate(record(1, 10), rows=(100,)).seconds == 10.0
    assert estimate(record(1, 10), past_rows={"r1": (100,)}).seconds == 10.0


@pytest.mark.parametrize(
    ("stage", "seconds"),
    [(Stage.validate, 30.0), (Stage.train, 30.0), (Stage.infer, 10.0), (Stage.evaluate, 10.0), (Stage.health, 10.0)],
)
def test_what_reads_the_rows_grows_with_them_and_the_rest_not_at_all(stage, seconds):
    found = estimate(record(1, 10, stage=stage), past_rows={"r1": (100,)}, stage=stage, rows=(100, 200))
    assert found.seconds == seconds


def test_dollars_are_of_the_machines_time_without_the_queue_at_todays_price():
    """A cost of an unpriced machine is unknown, never 0."""
    known = [record(1, 10, overhead=10, workers=2)]
    found = estimate(
        *known, past_rows={"r1": (100,)}, rows=(300,), workers=2, settings=("cost.dollars_per_worker_hour=36",)
    )
    assert (found.seconds, found.dollars) == (40.0, pytest.approx(30 * 2 * 36 / 3600))
    assert estimate(*known).dollars is None


def test_attempts_with_as_many_workers_are_preferred():
    known = [record(1, 100, workers=1), record(2, 30, workers=4), record(3, 110, workers=1)]
    assert estimate(*known, workers=4).seconds == 30.0
    assert estimate(*known, workers=2).seconds == 100.0


def test_runs_that_trained_other_sides_are_no_measure_unless_there_are_no_others():
    of_queries, of_both = small_config("train.sides=queries"), small_config()
    runs = {"r1": Facts(of_both, None), "r2": Facts(of_queries, None)}
    known = Past([record(1, 90), record(2, 30)], runs)
    assert [stage_cost(known, each, Stage.train).seconds for each in (of_both, of_queries)] == [90.0, 30.0]
    assert stage_cost(known._replace(records=known.records[:1]), of_queries, Stage.train).seconds == 90.0


def test_a_training_elsewhere_tells_nothing_and_a_check_elsewhere_a_little() -> None:
    there = ("compute=batch", "batch.accelerator_instance=trn1.32xlarge")
    train = estimate(record(1, 90), settings=there)
    assert (train.seconds, "train on trn1.32xlarge" in train.source) == (None, True)
    health = estimate(record(1, 90, stage=Stage.health), stage=Stage.health, settings=there)
    assert (health.seconds, health.basis) == (90.0, "assumed")


def test_an_attempt_counts_for_the_machines_that_were_configured() -> None:
    """AWS Batch may give a machine of another type, or of any if none is named."""
    config = small_config("compute=batch", "batch.accelerator_instance=trn1.32xlarge")
    got = record(1, 90).model_copy(update={"instance": "trn1n.32xlarge", "instance_seen": True})
    assert stage_cost(Past([got], {"r1": Facts(config, None)}), config, Stage.train).seconds == 90.0


def test_a_stage_without_successful_attempts_has_no_estimate():
    config = small_config()
    known = Past([record(1, 10), record(2, 10, stage=Stage.infer, failure=FailureClass.HOST)], {})
    assert stage_cost(known, config, Stage.infer).seconds is None
    assert work_cost(known, config, [Stage.train, Stage.infer]).seconds is None
    assert work_cost(known, config, [Stage.train]).seconds == 10.0


@pytest.fixture
def config():
    return small_config()


def test_a_first_run_has_no_estimate(store: DirectoryStore, config):
    assert run_cost(store, plan_run(store, config)).seconds is None


def test_a_run_is_expected_to_take_as_long_as_earlier_runs(store: DirectoryStore, runner: FakeRunner, config):
    carry_out(plan_run(store, config, "2021-Q1"))
    plan = plan_run(store, config)
    assert plan.span.name == "2021-Q2"
    assert run_cost(store, plan).seconds == 7 * 9.75


def test_a_first_run_of_queries_alone_is_expected_to_embed_no_item(
    store: DirectoryStore, runner: FakeRunner, config
) -> None:
    """It keeps the release's vectors, and was planned with the time of embedding them all."""
    made = carry_out(plan_run(store, config, "2021-Q1")).inferred
    assert made is not None
    assert made.texts_per_second is not None
    plan = plan_run(store, small_config("train.sides=queries"))
    embedding = made.vectors / made.texts_per_second
    assert embedding > 0
    assert run_cost(store, plan).seconds == pytest.approx(7 * 9.75 - embedding)
    carry_out(plan)
    assert run_cost(store, plan_run(store, config)).seconds == pytest.approx(7 * 9.75)


def test_finished_stages_are_not_in_the_estimate(store: DirectoryStore, runner: FakeRunner, config):
    carry_out(plan_run(store, config, "2021-Q1"))
    runner.fail(Stage.train, DataError("bad"))
    with pytest.raises(DataError):
        carry_out(plan_run(store, config, "2021-Q2"))
    plan = plan_run(store, config, "2021-Q2")
    assert store.exists(RESULT.key(run=plan.run_key, stage=Stage.warmup))
    assert run_cost(store, plan).seconds == 4 * 9.75


def test_twice_the_rows_take_twice_the_work(store: DirectoryStore, runner: FakeRunner, config):
    carry_out(plan_run(store, config, "2021-Q1"))
    commit_files(store, "spans/2021-Q2/v2", {"part-0.parquet": "more"}, "span", rows=80)
    plan = plan_run(store, config)
    assert plan.span == SpanRef(name="2021-Q2", version=2)
    # 8 s of work each: validate and train have it twice; infer embeds a catalogue as large as before.
    assert run_cost(store, plan).seconds == 7 * 9.75 + 2 * 8.0


def test_a_new_lineage_is_estimated_from_the_releases(store: DirectoryStore, runner: FakeRunner, config):
    carry_out(plan_run(store, config, "2021-Q1"))
    other = small_config("lineage=other")
    plan = plan_run(store, other, "2021-Q1")
    assert plan.history == ()
    assert run_cost(store, plan).seconds == 7 * 9.75


def test_after_rejected_runs_infer_is_estimated_from_an_older_release(
    store: DirectoryStore, runner: FakeRunner, config
):
    carry_out(plan_run(store, config, "2021-Q1"))
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    carry_out(plan_run(store, config, "2021-Q2"))
    head = lineage.head(store, "main")
    assert head is not None
    known = past(Snapshot(store), head[1].consumed[1:])  # the rejected run alone
    assert {one.stage for one in known.records if one.span == "2021-Q2"} == set(Stage) - {Stage.infer, Stage.release}
    assert stage_cost(known, config, Stage.infer).seconds is not None


def test_a_run_with_a_damaged_record_is_left_out(store: DirectoryStore, runner: FakeRunner, config):
    plan = plan_run(store, config)
    carry_out(plan)
    store.write(f"runs/{plan.run_key}/train/attempt-1/ledger.json", b"{}")
    assert run_cost(store, plan_run(store, config)).seconds is None


def test_a_year_of_history_is_not_read_whole(store: DirectoryStore, runner: FakeRunner, config, monkeypatch):
    carry_out(plan_run(store, config, "2021-Q1"))
    run_key = plan_run(store, config, "2021-Q1").run_key
    ref = RowsRef(span=SpanRef(name="2021-Q1", version=1), prefix=f"runs/{run_key}/validate/rows/2021-Q1", rows=40)
    old = [ref.model_copy(update={"prefix": f"runs/{number:016x}/validate/rows/x"}) for number in range(365)]
    listed, real = list[str](), store.list
    monkeypatch.setattr(store, "list", lambda prefix: listed.append(prefix) or real(prefix))
    assert len(past(Snapshot(store), [*old, ref]).records) == 7
    assert listed == ["/".join(one.prefix.split("/")[:2]) for one in (*old[-4:], ref)]


def test_the_rows_of_a_run_are_read_from_its_plan(store: DirectoryStore, runner: FakeRunner, config):
    carry_out(plan_run(store, config, "2021-Q2"))  # the first run takes both spans
    (facts,) = past(Snapshot(store), plan_run(store, config).history).runs.values()
    assert facts.rows == (40, 40)


@pytest.mark.parametrize(
    ("shape", "changed", "compiling"),
    [
        ("train.sequences=16", "train.epochs=1", 0.0),
        ("train.sequences=16", "train.batch_rows=32", 780.0),
        ("train.sequences=null", "train.epochs=1", 780.0),
    ],
    ids=["same settings", "another batch", "shapes of each span"],
)
def test_graphs_that_a_warmup_left_are_not_compiled_again(shape: str, changed: str, compiling: float) -> None:
    """The second run of a lineage was planned with the 13 minutes that the first one compiled."""
    then, config = small_config(shape, "train.epochs=1"), small_config(shape, "train.epochs=1", changed)
    seconds = Phases(compiling=780.0, productive=60.0)
    first = record(1, 60, stage=Stage.warmup).model_copy(update={"seconds": seconds})
    past = Past([first], {"r1": Facts(then, None, reads_graphs=True)})
    phases = stage_cost(past, config, Stage.warmup).phases
    assert phases is not None
    assert (phases.compiling, phases.productive) == (compiling, 60.0)


def test_reading_compiled_graphs_back_takes_its_time_again() -> None:
    config = small_config("train.sequences=16")
    facts = Facts(config, None, reads_graphs=True)
    both = [
        record(number, 60, stage=Stage.warmup).model_copy(update={"seconds": Phases(compiling=compiling)})
        for number, compiling in ((1, 780.0), (2, 8.0))
    ]
    phases = stage_cost(Past(both, {"r1": facts, "r2": facts}), config, Stage.warmup).phases
    assert phases is not None
    assert phases.compiling == 4.0, "between none and eight seconds"
