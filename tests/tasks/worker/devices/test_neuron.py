"""Training through TorchNeuron, by a stand-in on the processor that refuses what its documents refuse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.outcomes import TrainOutcome, WarmupOutcome
from tasks.contracts.references import CheckpointRef, CheckpointState, RowsRef
from tasks.foundation.errors import ConfigError
from tasks.worker.devices.accelerators import make_accelerator
from tasks.worker.process.job import Rank
from tests.support.fakes.neuron import native
from tests.support.processes.neuron import (
    GraphsRun,
    RefusedAs,
    refused,
    train_and_count,
    train_with_an_odd_shape,
    warm_up,
)
from tests.support.processes.ranks import run_ranks
from tests.support.processes.xla import SETTINGS
from tests.support.workspace.jobs import make_workspace, tensors_of, tiny_config, train_model

CPU = [*SETTINGS, "accelerator=cpu"]


class Warm(NamedTuple):
    """A workspace whose compile cache warmup has filled."""

    folder: Path
    store: DirectoryStore
    rows: RowsRef
    outcome: WarmupOutcome
    log: list[dict[str, Any]]  # the graphs that were compiled and run meanwhile

    def train(self, parent: CheckpointRef | None, *settings: str) -> tuple[TrainOutcome, GraphsRun]:
        given = self.folder, self.store.root, self.rows, self.outcome.compiled, parent, *settings
        return run_ranks(1, train_and_count, *given)[0]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> tuple[DirectoryStore, TrainOutcome]:
    store, rows = make_workspace(tmp_path_factory.mktemp("cpu"))
    return store, train_model(store, tiny_config(*CPU), rows)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Warm:
    folder = tmp_path_factory.mktemp("neuron")
    store, rows = make_workspace(folder)
    outcome = run_ranks(1, warm_up, folder, store.root, rows)[0]
    return Warm(folder, store, rows, outcome, native.log(folder))


def losses(outcome: TrainOutcome) -> list[float]:
    return [point.metrics["loss"] for point in outcome.losses]


def kinds(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.shows("TorchNeuron")
def test_warmup_compiles_each_graph_once_in_compile_only_mode_and_then_only_runs_them(warm: Warm):
    """In a process of its own, before the device is opened; nothing is executed there."""
    assert warm.outcome.compiled is not None
    assert warm.outcome.graphs is not None
    graphs = read_manifest(warm.store, warm.outcome.compiled.prefix).facts["graphs"]
    assert {graph["where"] for graph in graphs.values()} == {"ahead of time"}
    compiled = [entry for entry in warm.log if entry["what"] == "compiled"]
    assert sorted(entry["name"] for entry in compiled) == sorted(graphs)
    assert {(entry["compile_only"], entry["platform"]) for entry in compiled} == {(True, "trn2")}
    ran = [entry for entry in warm.log if entry["what"] == "run"]
    assert {entry["compile_only"] for entry in ran} == {False}
    assert {entry["pid"] for entry in ran}.isdisjoint({entry["pid"] for entry in compiled})
    assert (warm.outcome.graphs.misses, warm.outcome.graphs.compiled) == (0, ())
    assert all(loss > 0 for loss in warm.outcome.trial_losses), "of the trial that runs, not of the one of zeros"


@pytest.mark.shows("TorchNeuron")
def test_training_runs_two_graphs_a_step_compiles_none_and_has_the_numbers_of_cpu(warm: Warm, on_cpu):
    """Evaluations and checkpoints included; warmup compiled all in another process."""
    assert warm.outcome.compiled is not None
    trained, run = run_ranks(1, train_and_count, warm.folder, warm.store.root, warm.rows, warm.outcome.compiled, None)[
        0
    ]
    assert run.compiled == (), "only warmup compiles"
    assert (trained.graphs.misses, trained.graphs.hits) == (0, run.traced)
    assert run.traced == 3, "losses, update, embedding"
    steps = trained.last_step - trained.first_step
    by_graph = {name: sum(each == name for each in run.executed) for name in dict.fromkeys(run.executed)}
    in_steps = sorted(name for name, count in by_graph.items() if count == steps)
    assert [name.partition(", ")[2] for name in in_steps] == ["backward", "forward", "forward"]
    assert len({name.partition(",")[0] for name in in_steps}) == 2, "a step is two graphs, one with a backward pass"
    manifest = read_manifest(warm.store, warm.outcome.compiled.prefix)
    assert manifest.facts["complete"]
    assert len(manifest.facts["graphs"]) == 4, "forward and backward are compiled apart"
    assert losses(trained) == pytest.approx(losses(on_cpu[1]), rel=1e-3)
    for ours, theirs in zip(trained.curve, on_cpu[1].curve, strict=True):
        assert (ours.step, ours.metrics) == (theirs.step, pytest.approx(theirs.metrics, rel=1e-3))


@pytest.mark.proof
@pytest.mark.shows("TorchNeuron")
def test_one_odd_shape_stops_the_training_with_step_and_shape(warm: Warm):
    with pytest.raises(AssertionError, match=r"step 4, \d+ x 32 tokens"):
        run_ranks(
            1, train_with_an_odd_shape, warm.folder, warm.store.root, warm.rows, warm.outcome.compiled, "lineage=odd"
        )


@pytest.mark.proof
@pytest.mark.parametrize(
    "settings",
    [
        ("train.precision=bf16", "model.dropout=0.1"),
        ("train.precision=bf16-weights", "train.averaging={ema_half_life_steps: 3}"),
        ("train.gradcache_chunks=2",),
    ],
    ids=["bf16 and dropout", "bf16 weights and a running average", "chunks"],
)
def test_no_setting_makes_a_new_graph(tmp_path: Path, settings: tuple[str, ...]):
    store, rows = make_workspace(tmp_path)
    compiled = run_ranks(1, warm_up, tmp_path, store.root, rows, *settings)[0].compiled
    outcome, run = run_ranks(1, train_and_count, tmp_path, store.root, rows, compiled, None, *settings)[0]
    assert (outcome.graphs.misses, run.compiled) == (0, ())
    assert sum(losses(outcome)[-4:]) < 0.6 * sum(losses(outcome)[:4]), "and it learns"
    assert {tensor.dtype for tensor in tensors_of(store, outcome.checkpoint).values()} == {torch.float32}


@pytest.mark.shows("TorchNeuron")
def test_a_lineage_goes_from_cpu_to_neuron_and_back(warm: Warm):
    """The second run has the losses of cpu, and no checkpoint names its device."""
    here = tiny_config(*CPU, "lineage=crossing")
    again = train_model(warm.store, here, warm.rows, run_key="first")
    second, run = warm.train(again.checkpoint, "lineage=crossing")
    assert run.compiled == ()
    third = train_model(
        warm.store, tiny_config(*CPU, "lineage=crossing"), warm.rows, second.checkpoint, run_key="third"
    )
    store, rows = make_workspace(warm.folder / "plain")
    expected = [train_model(store, tiny_config(*CPU), rows, run_key="first")]
    for number in range(2):
        parent = expected[-1].checkpoint
        expected.append(train_model(store, tiny_config(*CPU), rows, parent, run_key=f"plain-{number}"))
    for crossed, straight in zip((second, third), expected[1:], strict=True):
        # Adam makes steps of equal size of the last digits too, so they grow from step to step.
        assert losses(crossed) == pytest.approx(losses(straight), rel=2e-3, abs=1e-3)
        for file in ("model", "optimizer"):
            ours, theirs = (
                tensors_of(warm.store, crossed.checkpoint, file),
                tensors_of(store, straight.checkpoint, file),
            )
            assert {n: (t.dtype, t.shape) for n, t in ours.items()} == {
                n: (t.dtype, t.shape) for n, t in theirs.items()
            }
    state = CheckpointState.model_validate_json(warm.store.read(f"{second.checkpoint.prefix}/state.json"))
    assert "neuron" not in state.model_dump_json()


def of_two_shapes(compiled: Callable[..., Any]) -> None:
    compiled(torch.ones(2, 3))
    compiled(torch.ones(4, 3))


class WithAHook(nn.Module):
    """It registers a hook inside forward, as the encoder once did."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        handle = self.inner.register_forward_hook(lambda module, inputs, out: out.bfloat16())
        try:
            return self.inner(given)
        finally:
            handle.remove()


VIOLATIONS: dict[str, RefusedAs] = {
    "a shape that is declared dynamic": RefusedAs(
        lambda given: given * 2, "NCC_EMOD025: Dynamic shape", options={"dynamic": True}
    ),
    "a shape that varies": RefusedAs(
        lambda given: given * 2, "NCC_EMOD025: Dynamic shape", options={"dynamic": None}, call=of_two_shapes
    ),
    "a shape that the data decides": RefusedAs(lambda given: given.nonzero(), "nonzero"),
    "64-bit ids": RefusedAs(lambda given: given + 1, "int64; NeuronCores have 32-bit", torch.arange(3)),
    "float64 as input": RefusedAs(lambda given: given + 1, "torch.float64, a type", torch.ones(3).double()),
    "float64 inside": RefusedAs(lambda given: given.double().sum().float(), "torch.float64, a type"),
    "complex numbers": RefusedAs(lambda given: torch.fft.fft(given).real, "torch.complex64, a type"),
    "a number read by the host": RefusedAs(lambda given: given * given.sum().item(), r"Tensor\.item\(\)"),
    "a list read by the host": RefusedAs(lambda given: given * given[0].tolist()[0], r"Tensor\.(item|tolist)|tolist"),
    "a branch on a value": RefusedAs(lambda given: given if given.sum() > 0 else -given, "[Dd]ata-dependent branching"),
    "a print": RefusedAs(lambda given: print(given.sum()) or given, "print"),
    "a hook registered in forward": RefusedAs(WithAHook(), "setattr|hook"),
    "an operation of processors": RefusedAs(
        lambda given: torch.ops.mkldnn._linear_pointwise(given, given.mT.contiguous(), None, "none", [], "none"),
        "NCC_EHCA005: custom call target mkldnn",
        torch.ones(3, 3),
    ),
}


@pytest.mark.shows("refusals of TorchNeuron")
def test_each_planted_violation_is_refused_by_its_name(tmp_path: Path):
    """The stand-in would be of no use if it let pass what TorchNeuron does not."""
    found = run_ranks(1, refused, tmp_path, __name__, list(VIOLATIONS))[0]
    assert found.pop("none") == "", "a sound function passes"
    for name, each in VIOLATIONS.items():
        with pytest.raises(RuntimeError, match=each.message):
            raise RuntimeError(found[name] or f"{name}: not refused")


@pytest.mark.parametrize(
    ("version", "settings", "message"),
    [
        (None, (), "needs TorchNeuron, which is not installed"),
        ("2.9.0.2.14", (), "is PyTorch/XLA, for accelerator: xla"),
        ("2.14.3.0.1", ("compiler.target=trn1",), "compiler.target is trn1, and TorchNeuron runs on trn2 and trn3"),
    ],
)
def test_the_wrong_package_or_machine_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, settings: tuple[str, ...], message: str
):
    if version is not None:
        about = tmp_path / f"torch_neuronx-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {version}\n")
        (tmp_path / "torch_neuronx.py").write_text("raise AssertionError('refused before its import')\n")
        monkeypatch.syspath_prepend(tmp_path)
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=message):
        make_accelerator("neuron", Rank(0, 1, 0), tiny_config("accelerator=neuron", *settings), "fp32")
    assert dict(os.environ) == before
