"""Pretrained folders whose weights are saved in another type than training keeps them in."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.contracts.jobs import TrainInputs
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.build import build_parts
from tasks.worker.training.resume import ResumePoint, make_start
from tests.support.models.pretrained import KINDS, write_pretrained
from tests.support.workspace.jobs import all_rows, make_job, make_workspace, tensors_of, tiny_config, train_model

NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def saved_in(dtype: torch.dtype, source: Path, folder: Path, said: torch.dtype | None = None) -> Path:
    """A copy of a pretrained folder with its weights, those of dense layers too, in `dtype`; its config says `said`."""
    shutil.copytree(source, folder)
    for path in folder.rglob("model.safetensors"):
        save_file({name: value.to(dtype) for name, value in load_file(path).items()}, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": NAMES[said or dtype]}))
    return folder


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["tanh", "last"])
def test_a_folder_of_any_type_trains_as_its_weights_in_fp32_do(tmp_path: Path, kind: str, dtype: torch.dtype):
    narrow = saved_in(dtype, write_pretrained(KINDS[kind], tmp_path / "written"), tmp_path / "narrow")
    wide = saved_in(torch.float32, narrow, tmp_path / "wide")
    outcomes, weights = [], []
    for folder in (narrow, wide):
        store, rows = make_workspace(tmp_path / f"of-{folder.name}", rows=60)
        outcomes.append(train_model(store, tiny_config(f"model.pretrained={folder}", "model.scratch=null"), rows))
        weights.append(tensors_of(store, outcomes[-1].checkpoint))
        said = json.loads((store.local(outcomes[-1].checkpoint.prefix) / "config.json").read_text())
        assert said["dtype"] == "float32", "a release says what its weights are"
    assert outcomes[0].losses == outcomes[1].losses
    assert outcomes[0].curve == outcomes[1].curve
    assert {value.dtype for value in weights[0].values()} == {torch.float32}
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_weights_that_are_finer_than_the_config_says_keep_their_digits(tmp_path: Path):
    source = write_pretrained(KINDS["cls"], tmp_path / "written")
    folder = saved_in(torch.float32, source, tmp_path / "said", said=torch.float16)
    config = tiny_config(f"model.pretrained={folder}", "model.scratch=null")
    store, rows = make_workspace(tmp_path, rows=20)
    encoder = build_parts(config, [all_rows(store, [rows], config)]).model.encoder.state_dict()
    written = load_file(source / "model.safetensors")
    assert all(torch.equal(encoder[name], value) for name, value in written.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-weights"])
def test_training_keeps_weights_as_its_precision_says(tmp_path: Path, precision: str):
    """The buffers stay: in bf16 the angles of rotary positions would be wrong from a hundred tokens on."""
    folder = saved_in(torch.float16, write_pretrained(KINDS["last"], tmp_path / "written"), tmp_path / "narrow")
    config = tiny_config(f"model.pretrained={folder}", "model.scratch=null", f"train.precision={precision}")
    store, rows = make_workspace(tmp_path, rows=20)
    inputs = TrainInputs(rows=(rows,), history=(), parent=None)
    parts = build_parts(config, [all_rows(store, [rows], config)])
    accelerator = CpuAccelerator(Rank(0, 1, 0))
    start = make_start(
        make_job(store, config, inputs), inputs, ResumePoint(None, own=False), parts, accelerator,
        accelerator.choose_precision(config.train.precision),
    )  # fmt: skip
    encoder = start.parts.model.encoder
    wanted = torch.bfloat16 if precision == "bf16-weights" else torch.float32
    assert {weight.dtype for weight in encoder.parameters()} == {wanted}
    others = [w for name, w in start.parts.model.named_parameters() if not name.startswith("encoder.")]
    assert {weight.dtype for weight in others} <= {torch.float32}
    angles = [buffer for name, buffer in encoder.named_buffers() if name.endswith("inv_freq")]
    assert angles
    assert {buffer.dtype for buffer in angles} == {torch.float32}
