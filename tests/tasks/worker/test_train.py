from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from configs.schema.training import learning_rate
from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import JobSpec, TrainInputs
from tasks.contracts.outcomes import StageResult, TrainOutcome
from tasks.contracts.references import CheckpointState, CurvePoint, HoldoutRule, RowsRef
from tasks.contracts.usage import RateUse
from tasks.data.holdout import held_out
from tasks.foundation.errors import ConfigError, DataError, HostError, StoreError
from tasks.quality.row_results import read_row_results
from tasks.worker import train
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.training import telemetry
from tests.support.fakes.neuron.neuron_tools import FakeTools, sample
from tests.support.fakes.stand_ins import Heard
from tests.support.processes.ends import assert_same_end
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    make_job,
    make_workspace,
    tensors_of,
    tiny_config,
    train_model,
    write_rows,
)

BOTH_HEADS = (CLASSIFIER, "heads.contrastive.positives_only=true")
ALL_PARTS = (*FEATURES, *BOTH_HEADS, "model.embedding_width=24")


Trained = tuple[DirectoryStore, RowsRef, TrainOutcome]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One run with both heads, features and interaction."""
    store, rows = make_workspace(tmp_path_factory.mktemp("train"))
    return store, rows, train_model(store, tiny_config(*ALL_PARTS), rows)


def state_of(store: DirectoryStore, outcome: TrainOutcome) -> CheckpointState:
    return CheckpointState.model_validate_json(store.read(f"{outcome.checkpoint.prefix}/state.json"))


def losses(points: tuple[CurvePoint, ...], name: str = "loss") -> list[float]:
    return [point.metrics[name] for point in points]


def test_a_run_ends_with_a_complete_checkpoint(trained: Trained):
    store, rows, outcome = trained
    state = state_of(store, outcome)
    assert (state.step, state.first_step, state.complete) == (outcome.last_step, 0, True)
    assert state.consumed == (rows,)
    assert (state.parent, state.seed, state.run_key) == (None, 17, "run")
    assert (state.losses, state.curve) == (outcome.losses, outcome.curve)
    assert outcome.model_version == f"main-{outcome.last_step:08d}-{outcome.checkpoint.sha256[:8]}"
    assert [path.name for path in store.path("lineages/main").iterdir()] == [f"step-{outcome.last_step:08d}"]


def test_each_training_row_and_no_holdout_row_is_trained_on(trained: Trained):
    store, rows, outcome = trained
    table = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    training = int((~held_out(table, HoldoutRule(group="query_and_item", share=0.2, measured=0.2))).sum())
    assert outcome.rows_trained == training < len(table)
    assert outcome.last_step == -(-training // 16)


def test_the_answers_to_single_rows_give_the_last_metrics(trained: Trained):
    store, _, outcome = trained
    assert outcome.answers_key is not None
    answers = read_row_results(store, outcome.answers_key)
    assert answers.metrics(Role.challenger) == pytest.approx(outcome.curve[-1].metrics, abs=1e-6)
    assert len(answers.row_id) == len(set(answers.row_id)) > 0


def test_a_lost_result_is_made_again_with_the_answers_of_the_attempt_that_evaluated(trained: Trained):
    store, rows, outcome = trained
    inputs = TrainInputs(rows=(rows,), history=(), parent=None)
    again = train.run(make_job(store, tiny_config(*ALL_PARTS), inputs, attempt=2))
    assert (again.curve, again.answers_key) == (outcome.curve, outcome.answers_key)


def test_the_model_learns(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    outcome = train_model(store, tiny_config(*BOTH_HEADS, "train.epochs=6"), rows)
    for name in ("loss", "contrastive", "classification"):
        values = losses(outcome.losses, name)
        assert sum(values[-8:]) < 0.8 * sum(values[:8]), name
    assert outcome.curve[-1].metrics["mrr@10"] > outcome.curve[0].metrics["mrr@10"]


@pytest.mark.parametrize(
    ("overrides", "parts", "metrics"),
    [
        ((), ["contrastive"], {"recall@1", "recall@10", "mrr@10", "ndcg@10"}),
        ((CLASSIFIER, "heads.contrastive=null"), ["classification"], {"recall@10", "accuracy", "macro_f1", "auc"}),
        ((CLASSIFIER, "heads.classification.input=query"), ["contrastive", "classification"], {"mrr@10", "auc"}),
        (BOTH_HEADS, ["contrastive", "classification"], {"recall@1", "accuracy"}),
    ],
    ids=["contrastive", "classification", "both, query alone", "both, positives only"],
)
def test_each_head_trains_alone_and_together(
    tmp_path: Path, overrides: tuple[str, ...], parts: list[str], metrics: set[str]
):
    store, rows = make_workspace(tmp_path)
    outcome = train_model(store, tiny_config(*overrides), rows)
    assert list(outcome.losses[0].metrics) == ["loss", *parts]
    assert metrics <= set(outcome.curve[-1].metrics)


def test_bf16_follows_fp32(tmp_path: Path):
    curves = []
    for precision in ("fp32", "bf16"):
        store, rows = make_workspace(tmp_path / precision)
        outcome = train_model(store, tiny_config(f"train.precision={precision}"), rows)
        assert outcome.precision == precision
        assert all(value.dtype == torch.float32 for value in tensors_of(store, outcome.checkpoint).values())
        curves.append(losses(outcome.losses))
    assert curves[1] == pytest.approx(curves[0], rel=0.05)
    assert curves[1] != curves[0]


def test_the_same_seed_gives_the_same_bits(trained: Trained, tmp_path: Path):
    _, _, first = trained
    store, rows = make_workspace(tmp_path)
    torch.manual_seed(12345)
    again = train_model(store, tiny_config(*ALL_PARTS), rows)
    assert again.checkpoint == first.checkpoint, "the sum is over all bytes of weights, optimiser and state"
    assert (again.losses, again.curve) == (first.losses, first.curve)


def test_another_seed_gives_another_model(trained: Trained, tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    other = train_model(store, tiny_config(*ALL_PARTS, "seed=18"), rows)
    assert losses(other.losses) != losses(trained[2].losses)


@pytest.mark.pipeline
def test_two_workers_give_the_losses_of_one(tmp_path: Path):
    """In processes of `python -m tasks.worker`, started by the runner."""
    outcomes, weights = [], []
    for workers in (1, 2):
        store, rows = make_workspace(tmp_path / str(workers))
        config = tiny_config(*ALL_PARTS, f"train.workers={workers}")
        spec = make_job(store, config, TrainInputs(rows=(rows,), history=(), parent=None)).spec
        spec = spec.model_copy(update={"workers": workers})
        outcome = run_in_processes(store, spec)
        outcomes.append(outcome)
        weights.append(tensors_of(store, outcome.checkpoint))
    one, two = outcomes
    for name in ("loss", "contrastive", "classification"):
        assert losses(two.losses, name) == pytest.approx(losses(one.losses, name), rel=1e-5)
    assert [point.step for point in two.curve] == [point.step for point in one.curve]
    for ours, theirs in zip(two.curve, one.curve, strict=True):
        assert ours.metrics == pytest.approx(theirs.metrics, abs=0.03)  # one row of the holdout may change its rank
    assert list(weights[1]) == list(weights[0])
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.pipeline
def test_a_forked_worker_trains_as_a_process_of_its_own_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ends = []
    for forked in (True, False):
        store, rows = make_workspace(tmp_path / str(forked))
        spec = make_job(store, tiny_config(*ALL_PARTS), TrainInputs(rows=(rows,), history=(), parent=None)).spec
        if not forked:
            monkeypatch.setattr("infra.compute.local.fork_worker", lambda *words: None)
        ends.append((store, run_in_processes(store, spec)))
    assert_same_end(*ends)


def run_in_processes(store: DirectoryStore, spec: JobSpec) -> TrainOutcome:
    store.write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    LocalRunner(store).run(spec, Heard(), tries=1)
    result = StageResult.model_validate_json(store.read(f"{spec.stage_prefix}/result.json"))
    assert isinstance(result.outcome, TrainOutcome)
    return result.outcome


def test_the_next_run_continues_at_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, rows = make_workspace(tmp_path)
    config = tiny_config("train.warmup_steps=3", "train.decay_steps=5")
    first = train_model(store, config, rows, run_key="first")
    later = write_rows(store, "2026-02", 80, tmp_path)
    steps: list[int] = []
    monkeypatch.setattr(
        "configs.schema.training.learning_rate",
        lambda step, train: steps.append(step) or learning_rate(step, train),
    )
    inputs = TrainInputs(rows=(later,), history=(rows,), parent=first.checkpoint)
    second = train.run(make_job(store, config, inputs, run_key="second"))
    assert sorted(set(steps)) == list(range(first.last_step, second.last_step)), "the rate goes on along the lineage"
    assert (second.first_step, second.resumed_at_step) == (first.last_step, None)
    rate = learning_rate(second.last_step - 1, config.train)
    assert second.learning_rate == RateUse(rate=rate, peak=config.train.learning_rate, warmed_up=True)
    state = state_of(store, second)
    assert state.consumed == (rows, later)
    assert state.parent == first.checkpoint
    assert [point.step for point in second.losses] == list(range(first.last_step + 1, second.last_step + 1))
    assert second.curve[0].step == first.last_step
    moments = tensors_of(store, second.checkpoint, "optimizer")
    counters = {float(value) for name, value in moments.items() if name.startswith("step/")}
    assert counters == {float(second.last_step)}, "the moments were continued"
    assert len(list(store.path("lineages/main").iterdir())) == 2, "the parent stays"


def test_the_curve_includes_the_holdout_of_the_history(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    later = write_rows(store, "2026-02", 80, tmp_path)
    config = tiny_config("train.evaluate_rows=1000")
    sizes = []
    for history in ((), (rows,)):
        inputs = TrainInputs(rows=(later,), history=history, parent=None)
        training, holdout = train.read_training_rows(make_job(store, config, inputs), inputs)
        sizes.append((sum(table.num_rows for table in training), holdout.num_rows))
    assert sizes[0][0] == sizes[1][0]
    assert sizes[1][1] > sizes[0][1]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.pooling=cls", "pooling 'mean'"),
        ("model.embedding_width=16", "width 24"),
        ("model.interaction.kind=implicit", "interaction"),
        ("model.interaction.deep_widths=[8]", "interaction"),
        ("heads.classification.input=query", "classifier 'pair'"),
        ("model.scratch.hidden_size=64", "hidden_size 32"),
        ("model.scratch.layers=2", "layers 1"),
        ("features.numeric=[]", "features"),
    ],
)
def test_a_lineage_keeps_its_shape(trained: Trained, override: str, named: str):
    store, rows, first = trained
    before = store.list("lineages")
    with pytest.raises(ConfigError, match="--set lineage=NAME") as caught:
        train_model(store, tiny_config(*ALL_PARTS, override), rows, parent=first.checkpoint, run_key="second")
    assert named in str(caught.value)
    assert store.list("lineages") == before


@pytest.mark.shows("neuron-monitor")
def test_the_outcome_has_the_use_of_neuroncores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(telemetry, "uses_neuron", lambda config: True)
    tools = FakeTools(tmp_path / "bin", monkeypatch)
    tools.add("neuron-monitor", stdout=sample("neuron-monitor-trn2-busy.json"), body="import signal\nsignal.pause()")
    store, rows = make_workspace(tmp_path)
    outcome = train_model(store, tiny_config("train.epochs=3"), rows)
    assert outcome.device_use is not None
    (node,) = outcome.device_use
    assert (node.node, node.readings, node.utilization_median, node.memory_gib_peak) == (0, 1, 42.01, 23.32)


def test_workers_that_exchange_wrong_numbers_do_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are not those that health has checked, and their machines may be others."""

    def refuse(_: Accelerator) -> None:
        raise HostError("all-reduce over 64 workers is wrong")

    monkeypatch.setattr(train, "prove_exchange", refuse)
    store, rows = make_workspace(tmp_path)
    with pytest.raises(HostError, match="over 64 workers"):
        train_model(store, tiny_config(), rows)
    assert not store.list("lineages")


def test_a_missing_parent_never_starts_over(trained: Trained):
    store, rows, first = trained
    gone = first.checkpoint.model_copy(update={"prefix": "lineages/main/step-00000099", "step": 99})
    with pytest.raises(StoreError, match="step-00000099 has no"):
        train_model(store, tiny_config(*ALL_PARTS), rows, parent=gone, run_key="second")


def test_a_span_without_training_rows_is_a_data_error(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=3)
    with pytest.raises(DataError, match=r"2026-01: .*all 3 rows"):
        train_model(store, tiny_config("evaluate.holdout_share=0.999999"), rows)
    assert not store.list("lineages")


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_a_config_error(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    with pytest.raises(ConfigError, match="this machine has 0"):
        train_model(store, tiny_config("accelerator=cuda"), rows)
    assert not store.list("lineages")


@pytest.mark.shows("same numbers on a GPU")
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU for accelerator: cuda")
def test_cuda_trains_like_the_cpu(trained: Trained, tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    outcome = train_model(store, tiny_config(*ALL_PARTS, "accelerator=cuda"), rows)
    assert losses(outcome.losses) == pytest.approx(losses(trained[2].losses), rel=1e-3)
