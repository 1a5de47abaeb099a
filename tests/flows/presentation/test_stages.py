"""The section of each stage but evaluate: its numbers, names and commands."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from flows.cli.app import app
from flows.presentation.run.pages import stage_page
from flows.presentation.stages.facts import StageFacts, section_of
from flows.presentation.stages.train import training_use
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Check, HealthOutcome, ReleaseOutcome
from tasks.contracts.references import CompileRef, CurvePoint, FeedRef
from tasks.contracts.search import MeasuredExport
from tasks.contracts.stages import Stage
from tasks.contracts.usage import (
    CheckpointUse,
    Communication,
    DeviceUse,
    EfaUse,
    GraphUse,
    NewGraph,
    RateUse,
    ShapeTiming,
    TokenUse,
)  # fmt: skip
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.errors import POLICIES, FailureClass, HostError, OutOfMemoryError, StageError
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tasks.runs.host_records import Findings
from tasks.runs.rollback import rollback
from tests.flows.presentation.done import Done
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.golden import Golden
from tests.support.pages.shown import commands, part, parts, row, rows, written
from tests.support.workspace.specs import MADE_BY
from tests.support.workspace.trainings import side

PRICE = "cost.dollars_per_worker_hour=3600"  # a dollar a second


def check(name: str, passed: bool, severity: str = "critical", host: str = "", action: str = "proceed") -> Check:
    return Check.model_validate(
        {"name": name, "passed": passed, "severity": severity, "observed": None, "sentence": f"of {name}"}
        | {"host": host, "action": action}
    )


def points(*values: tuple[int, dict[str, float]]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(step=step, metrics=metrics) for step, metrics in values)


# --- validate, health, warmup -----------------------------------------------------------------------------------


def test_validate_shows_row_counts_and_the_most_frequent_reason_first(done: Done, golden: Golden) -> None:
    reasons = {"item is null": 16, "no | query": 47}
    made = done.of(
        Stage.validate, done.run.validated, rows_in=2040, rows_clean=1977, rows_quarantined=63, reasons=reasons,
        quarantine="runs/x/quarantine.parquet",
    )  # fmt: skip
    golden(written(made, parts=False))


def test_validate_counts_rows_on_neither_side_where_they_were_looked_for(done: Done) -> None:
    counts = {"left_out_of_training": 1_234, "left_out_of_holdout": 0}
    assert ["1,234", "0"] in rows(done.of(Stage.validate, done.run.validated, **counts))
    golden = {**counts, "left_out_as_golden": 7}
    assert ["1,234", "7", "0"] in rows(done.of(Stage.validate, done.run.validated, **golden))
    before = done.of(Stage.validate, done.run.validated)
    assert not [table for table in before.tables if "left out" in (table.caption or "")]


def test_validate_lists_several_spans(store: DirectoryStore, runner: FakeRunner) -> None:
    plan = plan_run(store, small_config(), "2026-W47")
    made = stage_page(store, plan, Stage.validate, carry_out(plan).validated)
    assert row(made, "2026-W46 v1") == row(made, "2026-W47 v1") == ["40"]


def test_validate_names_the_feed_of_its_texts_and_counts_late_rows(done: Done, golden: Golden) -> None:
    feeds = (FeedRef(name="2026-01", version=1), FeedRef(name="2026-02", version=3))
    said = done.of(Stage.validate, done.run.validated, texts=feeds, rows_late=2).lines
    golden(said)


def test_failed_checks_come_first_with_their_host(done: Done, golden: Golden) -> None:
    checks = (check("a", True), check("b", False, "warning"), check("c", False, host="h-7", action="exclude host"))
    made = done.of(Stage.validate, done.run.validated, checks=checks)
    golden(written(part(made, "Checks")))


HEALTHY = HealthOutcome(
    device="cpu",
    matmul_gflops=(843.195, 451.0),
    slowest_to_median=1.43,
    free_memory_gib=(22.321, 1.0),
    free_disk_gib=70.25,
    collectives={"all_reduce_latency_us": 41.2, "all_gather_gb_s": 9.876, "other": 20.0},
    checks=(check("speed", False, "warning"),),
)


def test_health_shows_workers_and_network_with_units(done: Done, golden: Golden) -> None:
    made = done.of(Stage.health, HEALTHY)
    golden(written(made, parts=False))


def test_health_of_one_worker_compares_nothing_and_folds_many_workers(done: Done) -> None:
    alone = {"matmul_gflops": (843.2,), "free_memory_gib": (22.3,), "collectives": {}, "checks": ()}
    made = done.of(Stage.health, HEALTHY, **alone)
    assert not any("slowest" in line for line in made.lines)
    assert not made.tables[0].folded
    many = done.of(Stage.health, HEALTHY, matmul_gflops=(1.0,) * 64, free_memory_gib=(1.0,) * 64)
    assert many.tables[0].folded


GRAPHS = GraphUse(hits=6, misses=1, compile_seconds=41.25, seconds_saved=40.0, readable=True, compiled=("a",), new=())


def test_warmup_shows_shapes_memory_graphs_and_environment(done: Done, golden: Golden) -> None:
    new = (NewGraph(name="graph|7", where="step 12, 24 x 32 tokens", seconds=1.2),)
    shapes = (ShapeTiming(sequences=34, tokens=128, first_step_seconds=13.0, step_seconds=0.07),)
    made = done.of(
        Stage.warmup, done.run.warm, shapes=shapes, graphs=GRAPHS.model_copy(update={"new": new}),
        compiled=CompileRef(key="k-1", graphs=7, seconds=41.25), environment={"NEURON_CC_FLAGS": "-O1", "A": "1"},
    )  # fmt: skip
    golden(written(made, parts=False), *(written(part(made, name)) for name in ("Graphs", "Environment")))


def test_a_device_that_compiles_nothing_has_no_graphs(done: Done) -> None:
    made = done.of(Stage.warmup, done.run.warm)
    assert {"Graphs", "Environment"}.isdisjoint(each.title for each in parts(made))


# --- train ------------------------------------------------------------------------------------------------------


def test_train_shows_curves_speed_and_the_holdout_before_and_after(done: Done, golden: Golden) -> None:
    again = Done(done.store)
    curve = points((10, {"recall@10": 0.5}), (15, {"recall@10": 0.1}), (20, {"recall@10": 0.75, "auc": 0.9}))
    losses = points((15, {"loss": 2.0}), (20, {"loss": 1.5}))
    trained = again.run.trained
    use = DeviceUse(
        node=3,
        readings=9,
        utilization_median=42.04,
        utilization_peak=99.0,
        memory_gib_median=7.0,
        memory_gib_peak=7.25,
        efa=EfaUse(interfaces=8, sent_gib=1234.56, received_gib=2.0, faults={"rx_drops": 1200}),
    )
    made = again.of(
        Stage.train, trained, curve=curve, losses=losses, resumed_at_step=15, pairs_per_second=1234.5, graphs=GRAPHS,
        device_use=(use,), tokens=TokenUse(real=970, cut=30, computed=1000),
        communication=Communication(seconds=0.3, step_seconds=1.0, measured=False),
        learning_rate=RateUse(rate=4e-6, peak=5e-5, warmed_up=True),
    )  # fmt: skip
    golden(written(made, parts=False))
    assert [len(table.rows) for table in made.tables if table.folded] == [2, 3]


def test_train_shows_its_speed_as_a_share_of_the_bare_rate_that_health_measured(done: Done) -> None:
    seconds = CheckpointUse(
        every="auto", written=0, stalled_seconds=0.0, training_seconds=0.5, seconds=None, write_seconds=None,
        seconds_between_failures=None, failures=None, attempts=None,
    )  # fmt: skip
    tokens = TokenUse(real=970, cut=0, computed=1000)
    made = done.of(Stage.train, done.run.trained, tokens=tokens, checkpoints=seconds)
    speed, peak = row(made, "operations a second")[0].split(" TFLOP/s, ")
    (bare,) = row(made, "share of the bare matrix rate")  # health measured 1 GFLOP/s
    assert peak == "no published peak"
    assert float(bare.split(" %")[0]) == pytest.approx(100 * 1000 * float(speed), rel=0.05)


def test_train_shows_replayed_pairs_and_the_step_that_was_kept(done: Done, golden: Golden) -> None:
    development = points((15, {"mrr@10": 0.5}), (20, {"mrr@10": 0.25}))
    made = done.of(Stage.train, done.run.trained, rows_replayed=10, development=development, kept_step=15)
    golden(written(made, parts=False))


def test_train_shows_how_often_checkpoints_were_written_why_and_what_they_cost(done: Done, golden: Golden) -> None:
    use = CheckpointUse(
        every="auto", written=3, stalled_seconds=0.75, training_seconds=300.0, seconds=147.0, write_seconds=0.25,
        seconds_between_failures=43_200.0, failures=4, attempts=9,
    )  # fmt: skip
    made = done.of(Stage.train, done.run.trained, checkpoints=use)
    golden(written(made, parts=False))
    fixed = {"every": "50 steps", "seconds": None, "write_seconds": None, "seconds_between_failures": None}
    made = done.of(Stage.train, done.run.trained, checkpoints=use.model_copy(update=fixed))
    assert not any(each[0] == "why so often" for each in rows(made))
    assert not any(each[0] == "why so often" for each in rows(made))


def test_without_measurements_there_is_no_figure(done: Done) -> None:
    made = done.of(Stage.train, done.run.trained, losses=(), curve=())
    assert made.figures == ()
    assert len(made.tables) == 1


# --- infer, release ---------------------------------------------------------------------------------------------


def test_the_price_of_vectors_includes_attempts_that_failed(store: DirectoryStore, runner: FakeRunner) -> None:
    plan = plan_run(store, small_config(PRICE))
    runner.fail(Stage.infer, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    inferred = carry_out(plan).inferred
    assert inferred is not None
    made = stage_page(store, plan, Stage.infer, inferred.model_copy(update={"shards": 4, "shards_reused": 3}))
    assert made.title == "Infer: 30 vectors"
    assert row(made, "texts per second") == ["100.0"]
    assert row(made, "shards reused") == ["3"]
    assert row(made, "dollars per million vectors") == ["$650,000.00"]  # two attempts of 9.75 s for 30 vectors
    assert ["vectors", inferred.prefix] in rows(made)


def test_a_release_has_commands_to_roll_back_and_forward(done: Done) -> None:
    again = Done(done.store)
    release = again.run.released
    assert release is not None
    made = again.of(Stage.release, release)
    assert made.title == "Release: number 2"
    assert row(made, "previous release") == ["1"]
    assert row(made, "mrr@10 on the holdout") == ["0.3000"]
    assert ["model", release.model_prefix] in rows(made)
    for command, number in zip(commands(made)[1:], (1, 2), strict=True):
        name, *arguments = shlex.split(command)
        assert name == "millrace"
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        current = releases.current(done.store)
        assert current is not None
        assert current.number == number
    rollback(done.store)
    assert "Release 1 is current" in again.of(Stage.release, release).lines[0]


def test_a_release_shows_code_that_loads_the_model(done: Done) -> None:
    release = done.run.released
    assert release is not None
    (load,) = commands(done.of(Stage.release, release))  # the first release has nothing to go back to
    assert f"folder = '{done.store.uri}/{release.model_prefix}'" in load
    assert "trust_remote_code" not in load
    facts = StageFacts("s3://bucket/prefix", None, None, (), release=release)
    copy, load = commands(section_of(Stage.release, facts))
    version = release.model.version
    assert copy == f"aws s3 cp --recursive s3://bucket/prefix/models/{version} {version}"
    assert f"folder = '{version}'" in load
    assert "trust_remote_code=True" in load  # its plan is not known


def test_an_export_alone_is_shown_as_not_released() -> None:
    export = ReleaseOutcome(model="models/m-1", model_sha256="0", min_cosine=0.9999, probed=64, **MADE_BY)
    made = section_of(Stage.release, StageFacts("w", None, export, ()))
    assert "not released" in made.title
    assert "0.999900" in rows(made)[0][1]


def test_exports_are_shown_with_their_measurements_and_refusals() -> None:
    whole = MeasuredExport(kind="onnx", bytes=2_500_000, min_cosine=0.99999, recall_at_10=0.9, p50_ms=1.5, p99_ms=2.25)
    small = MeasuredExport(kind="onnx-int8", refused="it loses 0.0200 of the model's recall@10")
    export = ReleaseOutcome(
        model="models/m-1", model_sha256="0", min_cosine=0.9999, probed=64, exports=(whole, small), **MADE_BY
    )
    made = section_of(Stage.release, StageFacts("w", None, export, ()))
    assert row(made, "onnx") == ["in the model's folder", "2.5", "0.999990", "0.9000", "1.50", "2.25"]
    assert row(made, "onnx-int8")[0].startswith("refused: ")


# --- attempts and failures --------------------------------------------------------------------------------------


def test_attempts_show_seconds_and_dollars_with_a_sum(store: DirectoryStore, runner: FakeRunner) -> None:
    plan = plan_run(store, small_config(PRICE))
    runner.fail(Stage.health, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    carry_out(plan)
    made = part(stage_page(store, plan, Stage.health, HEALTHY), "Seconds and dollars")
    names = [column.name for column in made.tables[0].columns[2:]]
    assert names == ["booting", "compiling", "restoring", "productive", "lost", "seconds", "cost"]
    assert rows(made)[:3] == [
        ["health 1", "! HOST", "1.0", "0.5", "0.2", "–", "8.0", "9.8", "$9.75"],
        ["health 2", "✓ done", "1.0", "0.5", "0.2", "8.0", "–", "9.8", "$9.75"],
        ["all", "", "2.0", "1.0", "0.5", "8.0", "8.0", "19.5", "$19.50"],
    ]


def test_failed_attempts_have_class_message_and_findings(store: DirectoryStore, runner: FakeRunner) -> None:
    plan = plan_run(store, small_config())
    for error in (HostError("worker 3 | died"), OutOfMemoryError("no memory")):
        runner.fail(Stage.health, error)
        with pytest.raises(type(error)):
            carry_out(plan)
    found = Findings(checks=(check("disk", True), check("matmul", False, host="h-7", action="exclude host")))
    store.write(FINDINGS.key(run=plan.run_key, stage="health", attempt=1), found.to_json())
    carry_out(plan)
    made = part(stage_page(store, plan, Stage.health, HEALTHY), "Failed attempts")
    first, second = rows(made)[:2]
    assert first[:2] == ["health 1", "! HOST"]
    assert first[2].startswith("worker 3 | died (")
    assert POLICIES[FailureClass.HOST].meaning in first[2]
    assert second[:2] == ["health 2", "! OOM"]
    assert rows(part(made, "Found by health 1"))[0][:3] == ["matmul", "h-7", "✕ refused"]


def test_a_stage_without_failures_has_no_failure_section(done: Done) -> None:
    made = done.of(Stage.train, done.run.trained)
    assert "Failed attempts" not in [each.title for each in parts(made)]
    assert "all" not in [cells[0] for cells in rows(made)]  # no sum of one


@pytest.mark.parametrize("failure", list(FailureClass))
def test_a_failure_says_what_it_means_and_where_to_read_more(done: Done, failure: FailureClass) -> None:
    error = StageError("row 3 | is bad")
    error.failure = failure
    made = stage_page(done.store, done.plan, Stage.train, error)
    policy = POLICIES[failure]
    assert made.quote == "row 3 | is bad"
    assert policy.meaning.rstrip(".")[1:] in made.lines[0]
    assert row(made, "class") == [f"{failure}, exit code {policy.exit_code}"]
    assert row(made, "more") == [f"docs/runbook.md, {failure}"]


def test_a_training_uses_a_share_of_the_published_peak_and_of_healths_bare_products():
    # BERT-large at the 3,826.6 sequences of 128 a second that AWS publishes for one trn1.32xlarge: 29.8 % of its peak.
    width = "hidden_size: 1024, layers: 24, attention_heads: 16, intermediate_size: 4096"
    large = f"{{vocab_size: 30522, max_tokens: 512, {width}}}"
    on_aws = ("compute=batch", "batch.accelerator_instance=trn1.32xlarge", "batch.processes_per_node=32")
    rows = ("train.workers=32", "train.sequence_tokens=128", "train.batch_rows=64", "train.precision=bf16")
    config = small_config(f"model.scratch={large}", "accelerator=xla", *on_aws, *rows)
    use = CheckpointUse(
        every="auto", written=0, stalled_seconds=0.0, training_seconds=10.0, seconds=None, write_seconds=None,
        seconds_between_failures=None, failures=None, attempts=None,
    )  # fmt: skip
    tokens = TokenUse(real=4_000_000, cut=0, computed=38_266 * 128)
    outcome = side("xla").outcome.model_copy(update={"tokens": tokens, "checkpoints": use})
    found = training_use(config, outcome, None)
    assert found is not None
    assert found.peak_share == pytest.approx(0.298, abs=0.001)
    assert found.bare_share is None
    timed = HealthOutcome(
        device="cpu", matmul_gflops=(300.0, 200.0), slowest_to_median=1.2, free_memory_gib=(8.0, 8.0),
        free_disk_gib=8.0, collectives={}, checks=(),
    )  # fmt: skip
    here = training_use(small_config(), outcome, timed)
    assert here is not None
    assert here.peak_share is None
    assert here.bare_share == pytest.approx(here.operations_per_second / 500e9)
    assert training_use(config, side("xla").outcome, timed) is None
