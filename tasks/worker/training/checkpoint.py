"""Checkpoints: everything that training needs to continue exactly, in safetensors and JSON, written during training.

A checkpoint is self-contained: weights, optimiser, state, tokenizer with its settings, encoder config, feature
table. Nothing in it depends on the device. This module also finds a run's own partial checkpoint to resume from; the
plan names the parent.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, PretrainedConfig

from infra.store.base import Store
from infra.store.manifest import MANIFEST, CorruptFolder, MissingFolder, commit, open_folder, quarantine, read_manifest
from tasks.contracts.references import CheckpointRef, CheckpointState, ModelRef
from tasks.contracts.workspace import CHECKPOINT
from tasks.foundation.errors import CodeError, StoreError
from tasks.worker.model import features, tokens
from tasks.worker.model.embedding_model import EmbeddingModel, ModelShape
from tasks.worker.model.features import FeatureTable
from tasks.worker.training.tokenised import SHAPE_FILE, TokenizerSettings, read_settings, write_settings

KIND = "checkpoint"
RELEASED = "model.safetensors"  # the weights that are evaluated and released
TRAINED = "trained.safetensors"  # the weights that training continues from, if they differ
# The names of dropout in the configs of the different encoders.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "embedding_dropout",
    "mlp_dropout",
)  # fmt: skip
PARTIAL_KEPT = 2  # per run: the newest, and the one before in case the newest is corrupt


@dataclass(frozen=True)
class ModelParts:
    """A model with its tokenizer, feature table and encoder config.

    `items`: the model whose item vectors its queries find; None: it embeds both sides.
    """

    model: EmbeddingModel
    tokenizer: Tokenizer
    features: FeatureTable
    encoder_config: PretrainedConfig
    tokenizer_settings: TokenizerSettings
    items: ModelParts | None = None

    def of(self, side: Literal["query", "item"]) -> ModelParts:
        """Return the model that embeds a side."""
        return self.items if side == "item" and self.items is not None else self


def set_dropout(encoder_config: PretrainedConfig, dropout: float) -> None:
    """Set dropout: each run takes it from its configuration, not from the pretrained model."""
    for name in DROPOUTS:
        if hasattr(encoder_config, name):
            setattr(encoder_config, name, dropout)


def load_parts(
    store: Store, ref: CheckpointRef, dropout: float = 0.0, weights: Literal["released", "trained"] = "released"
) -> ModelParts:
    """Return the model of a checkpoint, on the CPU, with its own shape.

    Args:
        weights: the set to load; the two differ if a running average is released.

    Raises:
        StoreError: the checkpoint is missing, corrupt, or not the one in `ref`.
    """
    folder = _verified(store, ref)
    encoder_config = AutoConfig.from_pretrained(folder, local_files_only=True)
    set_dropout(encoder_config, dropout)
    table = FeatureTable.model_validate_json((folder / features.FILE).read_text(encoding="utf-8"))
    model = EmbeddingModel(
        encoder_config, ModelShape.model_validate_json((folder / SHAPE_FILE).read_text(encoding="utf-8"))
    )
    own = weights == "trained" and (folder / TRAINED).is_file()
    model.load_state_dict(load_file(folder / (TRAINED if own else RELEASED)))
    state = CheckpointState.model_validate_json((folder / "state.json").read_text(encoding="utf-8"))
    model.solved, model.labels_solved = state.head, dict(state.label_heads)
    return ModelParts(model, tokens.load_tokenizer(folder), table, encoder_config, read_settings(folder))


def load_released(store: Store, model: ModelRef) -> ModelParts:
    """Return a model as it is released, with the model of its items. Raises like `load_parts`."""
    parts = load_parts(store, model.checkpoint)
    return parts if model.items is None else replace(parts, items=load_parts(store, model.items.checkpoint))


def load_optimizer(
    store: Store, ref: CheckpointRef, model: EmbeddingModel, optimizer: torch.optim.AdamW
) -> CheckpointState:
    """Restore the optimiser state of a checkpoint; return the checkpoint's state."""
    from tasks.worker.training.optimizer import restore_optimizer  # a refresh has none

    folder = _verified(store, ref)
    restore_optimizer(model, optimizer, load_file(folder / "optimizer.safetensors"))
    return CheckpointState.model_validate_json((folder / "state.json").read_text(encoding="utf-8"))


def _verified(store: Store, ref: CheckpointRef) -> Path:
    try:
        folder, manifest = open_folder(store, ref.prefix, KIND)
    except (CorruptFolder, MissingFolder) as error:
        raise StoreError(
            f"the checkpoint can't be used: {error}, or start a new lineage with --set lineage=NAME"
        ) from error
    if manifest.sha256 != ref.sha256:
        raise StoreError(f"{store.uri}/{ref.prefix} is not the checkpoint that this run was planned with")
    return folder


def find_partial(store: Store, lineage: str, run_key: str, after: int) -> CheckpointRef | None:
    """Return the newest intact checkpoint of this run's earlier attempts, after its parent's step `after`.

    A checkpoint that needs the best one so far is intact only if that one is. Corrupt checkpoints are quarantined;
    folders whose writing or deletion was interrupted are deleted.
    """
    found = None
    for prefix in reversed(_prefixes(store, lineage, after)):
        try:
            manifest = read_manifest(store, prefix)
            if found is None and manifest.facts.get("run_key") == run_key:
                open_folder(store, prefix, KIND)
                if (best := manifest.facts.get("best")) is not None:
                    open_folder(store, CHECKPOINT.key(lineage=lineage, step=best), KIND)
                found = CheckpointRef(prefix=prefix, step=manifest.facts["step"], sha256=manifest.sha256)
        except MissingFolder:
            store.delete(prefix)
        except CorruptFolder as error:
            print(f"{error}; moved to {quarantine(store, prefix)}, continuing from the one before", flush=True)
    return found


def drop_partials(store: Store, lineage: str, run_key: str, after: int, keep: int) -> None:
    """Delete a run's partial checkpoints after its parent's step `after`, except the newest `keep`.

    The best checkpoints that these need are kept too.
    """
    own: dict[str, int | None] = {}  # folder -> step of the best checkpoint, which it needs
    for prefix in _prefixes(store, lineage, after):
        try:
            facts = read_manifest(store, prefix).facts
        except MissingFolder:
            continue  # being written
        if facts["run_key"] == run_key and not facts["complete"]:
            own[prefix] = facts.get("best")
    kept = list(own)[max(0, len(own) - keep) :]
    kept += [
        CHECKPOINT.key(lineage=lineage, step=best) for best in (own[prefix] for prefix in kept) if best is not None
    ]
    for prefix in sorted(own.keys() - set(kept)):
        _drop(store, prefix)


def _drop(store: Store, prefix: str) -> None:
    store.delete(f"{prefix}/{MANIFEST}")
    store.delete(prefix)


Files = dict[str, dict[str, torch.Tensor]]  # name of a file -> its tensors, on the host


class CheckpointWriter:
    """Writes checkpoints, and deletes older ones, in a thread; training waits only for the copy in memory.

    A new write first waits for the previous one. An error of the thread is raised at the next call.
    """

    def __init__(
        self, store: Store, parts: ModelParts, optimizer: torch.optim.AdamW, released: ModelParts | None = None
    ) -> None:
        """Write `parts`, the trained model, and `released`, the evaluated and released model, if it is another one."""
        self.store = store
        self.released = released or parts
        self.parts = parts
        self.optimizer = optimizer
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last: CheckpointRef | None = None
        self._waited_seconds, self._cpu_seconds = 0.0, 0.0

    @property
    def stalled_seconds(self) -> float:
        """Seconds that training waited for all writes; on the CPU, plus the processor seconds of the writes."""
        on_host = next(self.parts.model.parameters()).device.type == "cpu"
        return self._waited_seconds + (self._cpu_seconds if on_host else 0.0)

    def save(
        self, state: CheckpointState, best_step: int | None = None, written: Callable[[], None] = lambda: None
    ) -> None:
        """Start to write the model as it is now. Raises StoreError, OSError: the previous write failed.

        Args:
            best_step: step of the run's best checkpoint, which a resume from this one needs too.
            written: called in the thread once the checkpoint is complete.
        """
        began = time.monotonic()
        self.wait()
        model = self.parts.model
        from tasks.worker.training.optimizer import optimizer_tensors  # a refresh has none

        tensors: Files = {RELEASED: weights_on_host(self.released.model)}
        if self.released.model is not model:
            tensors[TRAINED] = weights_on_host(model)
        tensors["optimizer.safetensors"] = optimizer_tensors(model, self.optimizer)
        work = (state, tensors, best_step, written)
        self._thread = threading.Thread(target=self._write, args=work, name="checkpoint")
        self._thread.start()
        self._waited_seconds += time.monotonic() - began

    def wait(self) -> CheckpointRef | None:
        """Wait for the write in progress, and raise its error; return the checkpoint written last."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._last

    def _write(
        self, state: CheckpointState, tensors: Files, best_step: int | None, written: Callable[[], None]
    ) -> None:
        try:
            self._last = self._commit(state, tensors, best_step)
            written()
            if not state.complete:
                drop_partials(self.store, state.lineage, state.run_key, after=state.first_step, keep=PARTIAL_KEPT)
        except BaseException as error:  # passed to the training thread
            self._error = error
        finally:
            self._cpu_seconds += time.thread_time()

    def _commit(self, state: CheckpointState, tensors: Files, best_step: int | None) -> CheckpointRef:
        prefix = CHECKPOINT.key(lineage=state.lineage, step=state.step)
        weights = tensors.get(TRAINED, tensors[RELEASED])  # a mean of finite weights is finite
        if broken := [name for name, value in weights.items() if not value.isfinite().all()]:
            raise CodeError(
                f"at step {state.step} the weights {broken[0]} are not finite any more, so no checkpoint was written; "
                "lower train.learning_rate or raise train.warmup_steps. The checkpoint before it is intact"
            )
        with tempfile.TemporaryDirectory(prefix="millrace-") as name:
            folder = Path(name)
            for file, content in tensors.items():
                save_file(content, folder / file)
            (folder / "state.json").write_bytes(state.to_json())
            (folder / features.FILE).write_bytes(self.parts.features.to_json())
            (folder / SHAPE_FILE).write_bytes(self.parts.model.shape.to_json())
            self.parts.tokenizer.save(str(folder / tokens.FILE))
            write_settings(self.parts.tokenizer_settings, folder)
            self.parts.encoder_config.save_pretrained(folder)
            _clear_unfinished(self.store, prefix, state)
            facts = {"step": state.step, "run_key": state.run_key, "complete": state.complete}
            if best_step is not None:
                facts["best"] = best_step
            manifest = commit(self.store, prefix, folder, KIND, facts)
        return CheckpointRef(prefix=prefix, step=state.step, sha256=manifest.sha256)


def weights_on_host(model: EmbeddingModel) -> dict[str, torch.Tensor]:
    """Return copies of a model's weights, float32."""
    return {name: _on_host(value) for name, value in model.state_dict().items()}


def _on_host(weight: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host; bf16 becomes float32, without loss in both directions."""
    copy = weight.detach().cpu().clone()
    return copy.float() if copy.dtype == torch.bfloat16 else copy


def _clear_unfinished(store: Store, prefix: str, state: CheckpointState) -> None:
    """Remove an unfinished checkpoint of this step.

    Its writing was interrupted, it belongs to an abandoned run, or this run stopped there and is now complete.
    """
    try:
        facts = read_manifest(store, prefix).facts
    except MissingFolder:
        store.delete(prefix)
        return
    if not facts["complete"] and facts["run_key"] != state.run_key:
        quarantine(store, prefix)
    elif not facts["complete"] and state.complete:
        _drop(store, prefix)


def _prefixes(store: Store, lineage: str, after: int) -> list[str]:
    """Return the lineage's checkpoint folders after step `after`, with or without manifest, in the order of steps."""
    folders = {key.rpartition("/")[0] for key in store.list(CHECKPOINT.within(lineage=lineage))}
    return sorted(folder for folder in folders if folder > CHECKPOINT.key(lineage=lineage, step=after))
