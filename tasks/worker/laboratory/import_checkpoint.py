"""import-checkpoint: imports another program's weights as the first checkpoint of a lineage.

The weights are found by their own names, behind one wrapper prefix. No code of the file is ever run: torch.load with
weights_only, or safetensors. The model is the same as in the lineage's first run.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from infra.store.base import sha256_of
from tasks.contracts.jobs import ImportInputs, TrainInputs
from tasks.contracts.outcomes import ImportOutcome
from tasks.contracts.references import CheckpointState
from tasks.foundation.errors import ConfigError, DataError, FailureClass, classify
from tasks.worker.export.trial_release import try_release
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import CheckpointWriter
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import read_training_rows

Shape = tuple[int, ...]

_ENCODER = "encoder."
_UNUSED = re.compile(r"encoder\.(.*\.)?(position_ids|token_type_ids|pooler\..*)")  # ids are computed
_LISTED = 10  # names of each kind in a message


class Match(NamedTuple):
    """The model's tensors in a file."""

    mapped: Mapping[str, str]  # the model's name -> the file's
    ignored: tuple[str, ...]  # in the file only
    missing: tuple[str, ...]  # in the model only


def match_names(theirs: Mapping[str, Shape], ours: Mapping[str, Shape]) -> Match:
    """Find the model's tensors in a file.

    Raises:
        ValueError: the file's encoder is incomplete or larger than the model's; a head (interaction, projection,
            classifier) is incomplete; or a tensor has another shape. Names at most ten of each kind.
    """
    own = _own_names(theirs, ours)
    mapped = {name: own[name] for name in ours if name in own}
    parts = {_part(name) for name in mapped}
    needed = [name for name in (*ours, *own) if _part(name) in parts and not _UNUSED.fullmatch(name)]
    wrong = [name for name, their in mapped.items() if theirs[their] != ours[name]]
    kinds = {
        "the model has these, the file does not": [name for name in needed if name not in own],
        "the file has these inside the same parts, the model does not": [own[n] for n in needed if n not in ours],
        "of another shape": [
            f"{mapped[name]} is {_product(theirs[mapped[name]])} in the file, {_product(ours[name])} in the model"
            for name in wrong
        ],
    }
    if any(kinds.values()):
        lines = [f"  {kind} ({len(names)}): {_listed(names)}" for kind, names in kinds.items() if names]
        raise ValueError("\n".join([f"{len(mapped) - len(wrong)} tensors fit, but not all that must:", *lines]))
    taken = set(mapped.values())
    ignored = tuple(name for name in theirs if name not in taken)
    return Match(mapped, ignored, tuple(name for name in ours if name not in mapped))


def _own_names(theirs: Mapping[str, Shape], ours: Mapping[str, Shape]) -> dict[str, str]:
    """Map the model's names to the file's; names without the encoder's prefix are skipped.

    The file may hold the whole model, e.g. `module.encoder.embeddings...`, or its encoder alone, e.g. `embeddings...`,
    `bert.embeddings...` or `0.auto_model.embeddings...`.
    """
    first = next(name for name in ours if name.startswith(_ENCODER)).removeprefix(_ENCODER)
    found = [name for name in theirs if f".{name}".endswith(f".{first}")]
    if not found:
        raise ValueError(f"There is no {first} in the file, under any prefix; it has {_listed([*theirs])}.")
    if len(found) > 1:
        raise ValueError(f"The encoder is in the file more than once: {_listed(found)}; save the one to import.")
    before = found[0].removesuffix(first)
    prefix, added = (before.removesuffix(_ENCODER), "") if f".{before}".endswith(f".{_ENCODER}") else (before, _ENCODER)
    return {added + name.removeprefix(prefix): name for name in theirs if name.startswith(prefix)}


def _part(name: str) -> str:
    return name.partition(".")[0]


def _product(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest


NESTED = ("state_dict", "model_state_dict", "model")  # keys under which training scripts save the weights
SAVE = "where it was made, save it with torch.save(model.state_dict(), FILE)"


def run(job: Job) -> ImportOutcome:
    """Write the lineage's first checkpoint, at step 0 and without optimiser state.

    Raises:
        DataError: the file is damaged, changed, or contains anything but finite weights.
        ConfigError: the weights belong to another model, and the message lists the differences; or the pretrained
            folder's model can't be released.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ImportInputs)
    config, path = job.config, Path(inputs.file)
    with job.clock.phase("restoring"):
        if inputs.copy_key is not None:
            path = job.store.local(inputs.copy_key)
        if not path.is_file() or sha256_of(path) != inputs.sha256:
            raise DataError(
                f"{path} is missing, or changed after the import was requested; import it when it is complete"
            )
        theirs = read_weights(path)
        training, _ = read_training_rows(job, TrainInputs(rows=inputs.rows, history=(), parent=None))
        parts = build_parts(config, training)
    ours = parts.model.state_dict()
    try:
        match = match_names(_shapes(theirs), _shapes(ours))
    except ValueError as error:
        raise ConfigError(
            f"{path} holds the weights of another model than the configuration has. {error}\n"
            "Give model.pretrained the folder whose config.json the weights belong to, or save them under the names of "
            "that model, without what does not belong to it. Nothing was written"
        ) from error
    if config.model.pretrained is not None:
        try_release(config)
    parts.model.load_state_dict(ours | {own: _float32(path, name, theirs[name]) for own, name in match.mapped.items()})
    state = CheckpointState(
        lineage=config.lineage,
        run_key=job.spec.run_key,
        step=0,
        first_step=0,
        complete=True,
        consumed=(),
        parent=None,
        seed=config.seed,
        losses=(),
        curve=(),
    )
    writer = CheckpointWriter(job.store, parts, torch.optim.AdamW(parts.model.parameters()))  # without a step
    with job.clock.phase("productive"):
        writer.save(state)
        checkpoint = writer.wait()
    assert checkpoint is not None, "it was just written"
    print(f"ignored: {', '.join(match.ignored)}\nnew: {', '.join(match.missing)}", flush=True)
    return ImportOutcome(
        checkpoint=checkpoint,
        sha256=inputs.sha256,
        mapped=len(match.mapped),
        ignored=match.ignored,
        new=match.missing,
    )


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a torch.save or safetensors file by name, on the host, in their saved dtype.

    Raises:
        DataError: the file is unreadable, would run code when read, or holds no state dict.
    """
    with path.open("rb") as file:
        is_safetensors = file.read(9)[8:] == b"{"  # after the length of the header
    try:
        return _state_dict(path, load_file(path) if is_safetensors else _read_torch(path))
    except SafetensorError as error:
        raise DataError(f"{path} is cut off or damaged, copy it again: {error}") from error


def _read_torch(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old formats and TorchScript archives
            return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch.load raises many kinds for damaged bytes, from struct.error to EINVAL
        if classify(error) is not FailureClass.CODE:
            raise  # memory or disk failed
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise DataError(
                f"{path} holds a Python object of {found[1]}, and reading it would run code of the file, so it is "
                f"refused; {SAVE}"
            ) from error
        raise DataError(
            f"{path} can't be read: it is cut off or damaged, or neither torch.save nor safetensors wrote it. Copy it "
            f"again, or {SAVE}"
        ) from error


def _state_dict(path: Path, content: object) -> dict[str, torch.Tensor]:
    """Return the state dict: the content itself, or the value of one of the usual keys."""
    weights: Any = content
    if not isinstance(content, Mapping):
        raise DataError(f"{path} holds a {type(content).__name__}, not a state dict; {SAVE}")
    nested = [key for key in NESTED if isinstance(content.get(key), Mapping)]
    if len(nested) > 1:
        raise DataError(f"{path} holds several models, under {' and '.join(nested)}; save only the one to import")
    if nested:
        weights = content[nested[0]]
    if not weights:
        raise DataError(f"{path} holds no tensors; {SAVE}")
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise DataError(
                f"{path} holds a {type(value).__name__} under {name!r}, where only tensors belong; {SAVE}, or a dict "
                f"with the weights under one of {', '.join(NESTED)}"
            )
    return dict(weights)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _float32(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Convert a weight to float32; raises DataError if training can't continue from it."""
    if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
        kind = "no values" if tensor.is_meta else f"{tensor.dtype} values, {tensor.layout}".replace("torch.", "")
        raise DataError(f"{path}: {name} holds {kind}; weights to train on must be dense floating point numbers")
    weight = tensor.detach().float()
    if broken := int((~weight.isfinite()).sum()):
        raise DataError(
            f"{path}: {broken} of the {weight.numel()} numbers in {name} are not finite (NaN or infinite); "
            "import an earlier checkpoint of that training"
        )
    return weight
