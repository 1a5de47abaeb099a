"""Training on XLA's CPU runtime: its graphs and its numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.outcomes import TrainOutcome, WarmupOutcome
from tasks.contracts.references import CheckpointState, RowsRef
from tasks.foundation.errors import ConfigError
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.xla_environment import XlaEnvironment
from tasks.worker.process.job import Rank
from tests.support.models.mined import SETTINGS as MINED
from tests.support.models.mined import make_mined
from tests.support.processes.ranks import run_ranks
from tests.support.processes.xla import (
    SETTINGS,
    check_health,
    train_on,
    train_with_an_odd_shape,
    warm_up,
    warm_up_or_train,
)
from tests.support.workspace.jobs import make_workspace, tensors_of, tiny_config, train_model

CPU = [*SETTINGS, "accelerator=cpu"]


class Warm(NamedTuple):
    """A workspace whose compile cache warmup has filled."""

    store: DirectoryStore
    rows: RowsRef
    outcome: WarmupOutcome

    def train(self, *overrides: str) -> TrainOutcome:
        return run_ranks(1, train_on, self.store.root, self.rows, self.outcome.compiled, None, *overrides)[0]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    store, rows = make_workspace(tmp_path_factory.mktemp("xla"))
    return Warm(store, rows, run_ranks(1, warm_up, store.root, rows)[0])


@pytest.fixture(scope="module")
def trained(warm: Warm) -> TrainOutcome:
    return warm.train()


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirectoryStore, TrainOutcome]:
    store, rows = make_workspace(tmp_path_factory.mktemp("cpu"))
    return store, train_model(store, tiny_config(*CPU), rows)


def losses(outcome: TrainOutcome) -> list[float]:
    return [point.metrics["loss"] for point in outcome.losses]


def kinds(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def test_warmup_compiles_and_names_every_graph(warm: Warm):
    assert warm.outcome.compiled is not None
    assert warm.outcome.graphs is not None
    manifest = read_manifest(warm.store, warm.outcome.compiled.prefix)
    graphs = manifest.facts["graphs"]
    assert manifest.facts["complete"]
    assert set(graphs) == set(warm.outcome.graphs.compiled) == {entry.name for entry in manifest.files}
    [shape] = warm.outcome.shapes
    places = {graph["where"] for graph in graphs.values()}
    assert {f"training step, {shape.sequences} x 32 tokens", "evaluation"} <= places
    assert len(graphs) <= 6, "whatever the lengths of the texts"
    assert all(graph["seconds"] > 0 and graph["bytes"] > 0 for graph in graphs.values())


@pytest.mark.shows("no new graph")
def test_training_in_another_process_meets_only_the_warmed_graphs(warm: Warm, trained: TrainOutcome):
    """With its evaluations, its partial checkpoints and the complete one."""
    assert warm.outcome.compiled is not None
    assert trained.graphs is not None
    graphs = read_manifest(warm.store, warm.outcome.compiled.prefix).facts["graphs"]
    assert (trained.graphs.misses, trained.graphs.new) == (0, ())
    assert set(trained.graphs.compiled) == set(graphs)
    assert [point.step for point in trained.curve] == [0, 5, 10, 15, 16]


@pytest.mark.proof
def test_a_second_warmup_meets_no_new_graph_and_saves_no_time(warm: Warm):
    again = run_ranks(1, warm_up, warm.store.root, warm.rows)[0]
    assert again.compiled == warm.outcome.compiled
    assert again.graphs.misses == 0
    assert warm.outcome.compiled is not None
    assert again.graphs.hits == warm.outcome.compiled.graphs
    assert again.graphs.seconds_saved == 0
    assert "compiled graphs back" in again.graphs.sentence


@pytest.mark.shows("no new graph")
def test_one_odd_shape_stops_the_training_with_step_and_shape(warm: Warm):
    message = r"CompileError: step 4, \d+ x 32 tokens: graph \d+ was compiled in .* warmup did not compile it"
    with pytest.raises(AssertionError, match=message):
        run_ranks(1, train_with_an_odd_shape, warm.store.root, warm.rows, warm.outcome.compiled, "lineage=odd")


def test_without_warmup_nothing_is_trained(warm: Warm):
    with pytest.raises(AssertionError, match="only with graphs"):
        run_ranks(1, train_on, warm.store.root, warm.rows, None, None, "lineage=cold")


@pytest.mark.proof
@pytest.mark.parametrize("setting", ["model.dropout=0.1", "train.precision=bf16", "train.precision=bf16-weights"])
def test_dropout_and_lower_precision_make_no_new_graphs(tmp_path: Path, setting: str):
    store, rows = make_workspace(tmp_path)
    compiled = run_ranks(1, warm_up, store.root, rows, setting)[0].compiled
    outcome = run_ranks(1, train_on, store.root, rows, compiled, None, setting)[0]
    assert outcome.graphs.misses == 0
    assert sum(losses(outcome)[-4:]) < 0.8 * sum(losses(outcome)[:4]), "and it learns"
    assert {tensor.dtype for tensor in tensors_of(store, outcome.checkpoint).values()} == {torch.float32}


@pytest.mark.proof
def test_mined_negatives_and_chunks_make_no_new_graphs(tmp_path: Path):
    """Another batch has other negatives, and fewer of them; each chunk is another part of its batch."""
    made = make_mined(tmp_path)
    settings = (*MINED, "heads.multiclass=null", "heads.regression=null", "heads.contrastive.symmetric=true")
    settings = (*settings, "heads.contrastive.logq=true", "train.gradcache_chunks=2", "train.learning_rate=1e-3")
    root = made.store.root
    compiled = run_ranks(1, warm_up_or_train, root, made.inputs, "warmup", *settings)[0].compiled
    inputs = made.inputs.model_copy(update={"compiled": compiled})
    outcome = run_ranks(1, warm_up_or_train, root, inputs, "train", *settings)[0]
    assert outcome.graphs.misses == 0
    assert outcome.mined.pairs > 20
    assert outcome.last_step - outcome.first_step > 4


@pytest.mark.proof
@pytest.mark.parametrize(
    "averaging", ["{ema_half_life_steps: 3}", "{merge_with_parent: 0.3}"], ids=["a running average", "a merge"]
)
def test_what_is_against_forgetting_makes_no_new_graphs_and_the_same_model_as_on_cpu(tmp_path: Path, averaging: str):
    settings = (
        f"train.averaging={averaging}",
        "train.keep_best={metric: mrr@10, rows: 16, patience: null}",
        "train.decay_before_release={share: 0.5, floor: 0.1}",
    )
    store, rows = make_workspace(tmp_path / "xla")
    plain, plain_rows = make_workspace(tmp_path / "cpu")
    config = tiny_config(*CPU)
    parents = [train_model(s, config, r, run_key="first") for s, r in ((store, rows), (plain, plain_rows))]
    compiled = run_ranks(1, warm_up, store.root, rows, *settings)[0].compiled
    outcome = run_ranks(1, train_on, store.root, rows, compiled, parents[0].checkpoint, *settings)[0]
    assert outcome.graphs.misses == 0
    expected = train_model(plain, tiny_config(*CPU, *settings), plain_rows, parents[1].checkpoint)
    assert losses(outcome) == pytest.approx(losses(expected), rel=1e-3)
    assert outcome.kept_step == expected.kept_step
    ours, theirs = tensors_of(store, outcome.checkpoint), tensors_of(plain, expected.checkpoint)
    assert kinds(ours) == kinds(theirs)
    largest: dict[str, float] = {}  # of a layer
    for name, weight in theirs.items():
        layer = name.rpartition(".")[0]
        largest[layer] = max(largest.get(layer, 1.0), weight.abs().max().item())
    for name, weight in theirs.items():
        # This head is solved until it hardly gets better, and its classes are all but separable: two digits are sure.
        share = 2e-2 if name.startswith("label_heads.multiclass") else 1e-3
        near = share * largest[name.rpartition(".")[0]]
        torch.testing.assert_close(ours[name], weight, rtol=1e-2, atol=near, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.shows("same numbers on XLA")
def test_losses_and_metrics_are_equal_to_cpu_without_xla(trained: TrainOutcome, on_cpu):
    assert losses(trained) == pytest.approx(losses(on_cpu[1]), rel=1e-4)
    for ours, theirs in zip(trained.curve, on_cpu[1].curve, strict=True):
        assert (ours.step, ours.metrics) == (theirs.step, pytest.approx(theirs.metrics, rel=1e-4))


@pytest.mark.proof
def test_the_same_training_twice_gives_the_same_weights(tmp_path: Path, warm: Warm, trained: TrainOutcome):
    again = warm.train("lineage=again")
    for name, weight in tensors_of(warm.store, trained.checkpoint).items():
        assert torch.equal(weight, tensors_of(warm.store, again.checkpoint)[name]), name


@pytest.mark.proof
def test_two_processes_give_the_losses_of_one(tmp_path: Path, trained: TrainOutcome):
    store, rows = make_workspace(tmp_path)
    warmups = run_ranks(2, warm_up, store.root, rows)
    assert warmups[0].compiled == warmups[1].compiled
    outcomes = run_ranks(2, train_on, store.root, rows, warmups[0].compiled, None)
    for outcome in outcomes:
        assert outcome.graphs.misses == 0
        assert losses(outcome) == pytest.approx(losses(trained), rel=1e-4)
        for point, expected in zip(outcome.curve, trained.curve, strict=True):
            assert (point.step, point.metrics) == (
                expected.step,
                pytest.approx(expected.metrics, rel=1e-4, abs=1e-4, nan_ok=True),  # a log loss may be near 0
            )


@pytest.mark.proof
def test_a_lineage_goes_from_cpu_to_xla_and_back(tmp_path: Path, on_cpu):
    """Three runs give what three runs on cpu give, and no checkpoint shows where it was made."""
    store, rows = make_workspace(tmp_path / "crossing")
    plain, plain_rows = make_workspace(tmp_path / "plain")
    first = train_model(store, tiny_config(*CPU), rows)
    compiled = run_ranks(1, warm_up, store.root, rows)[0].compiled
    second = run_ranks(1, train_on, store.root, rows, compiled, first.checkpoint)[0]
    third = train_model(store, tiny_config(*CPU), rows, second.checkpoint, run_key="third")
    expected = [first]
    parent = train_model(plain, tiny_config(*CPU), plain_rows).checkpoint
    for number in range(2):
        expected.append(train_model(plain, tiny_config(*CPU), plain_rows, parent, run_key=f"plain-{number}"))
        parent = expected[-1].checkpoint
    for crossed, straight in zip((second, third), expected[1:], strict=True):
        # Adam makes steps of equal size of the last digits too, so they grow from step to step.
        assert losses(crossed) == pytest.approx(losses(straight), rel=2e-3, abs=1e-3)
        for file in ("model", "optimizer"):
            ours, theirs = tensors_of(store, crossed.checkpoint, file), tensors_of(plain, straight.checkpoint, file)
            assert kinds(ours) == kinds(theirs)
        state = CheckpointState.model_validate_json(store.read(f"{crossed.checkpoint.prefix}/state.json"))
        assert "xla" not in state.model_dump_json()
        assert "xla" not in read_manifest(store, crossed.checkpoint.prefix).model_dump_json()


def feed_what_fails(rank: Rank) -> str:
    def batches() -> Iterator[torch.Tensor]:
        yield torch.ones(2)
        raise ValueError("row 3 can't be made a batch of")

    with open_accelerator("xla", rank) as accelerator:
        fed = accelerator.feed(batches())
        assert next(fed).tolist() == [1.0, 1.0]
        try:
            next(fed)
        except ValueError as error:
            return str(error)
    return "it just ended"


def test_an_error_in_making_a_batch_is_raised():
    assert len(run_ranks(1, feed_what_fails)) == 1


def join_as_worker_1_of_2(_: Rank, folder: Path, worlds: list[int]) -> list[list[str]]:
    """What is called, and what is raised, where the runtime of NeuronCores sees each of `worlds`."""
    import torch_xla
    import torch_xla.runtime as xr

    from tasks.worker.devices.xla import XlaAccelerator

    found: list[list[str]] = []
    device = torch_xla.device()
    for world in worlds:
        calls: list[str] = []
        dist.init_process_group = lambda backend, calls=calls, **_: calls.append(f"group {backend}")
        dist.new_group = lambda calls=calls, **more: calls.append(f"group {more['backend']}")
        torch_xla.device = lambda calls=calls: calls.append("device") or device
        xr._WORLD_SIZE, xr._ORDINAL = world, world - 1
        accelerator = XlaAccelerator(Rank(1, 2, 1, 2), XlaEnvironment(True, folder, {}, "", ""))
        try:
            accelerator.join()
        except ConfigError as error:
            calls.append(str(error).partition(",")[0])
        found.append(calls)
    return found


@pytest.mark.shows("place of a worker")
def test_the_device_is_opened_in_the_group_and_must_see_all_of_it(tmp_path: Path):
    [(sound, alone)] = run_ranks(1, join_as_worker_1_of_2, tmp_path / "graphs", [2, 1])
    assert sound == ["group xla", "group gloo", "device"]
    assert alone[:-1] == sound
    assert alone[-1].endswith("0 of 1")


def test_the_collectives_of_two_healthy_processes_pass(tmp_path: Path):
    (tmp_path / "workspace").mkdir()
    for outcome in run_ranks(2, check_health, tmp_path / "workspace", False):
        assert outcome.device == "xla"
        assert {"all-reduce", "all-gather", "gradient sum"} <= {check.name for check in outcome.checks if check.passed}


@pytest.mark.shows("broken collectives")
def test_an_all_reduce_that_does_nothing_is_caught_before_training(tmp_path: Path):
    """In XLA's processor runtime each process sees a world of one: an all-reduce returns its input."""
    (tmp_path / "workspace").mkdir()
    with pytest.raises(AssertionError, match=r"got 1 at .* 0, .* 3"):
        run_ranks(2, check_health, tmp_path / "workspace", True)
