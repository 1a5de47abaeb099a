"""release: exports the evaluated model, checks the export and its heads, and searches the catalogue as users will.

Afterwards the control plane judges the measurements and moves the pointer to the current release.
"""

import importlib.metadata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from infra.store.base import Conflict, Store
from infra.store.manifest import (
    CorruptFolder,
    Manifest,
    MissingFolder,
    commit,
    expect_manifest,
    find_damage,
    in_turn,
    open_folder,
    quarantine,
    read_manifest,
    sentence_of,
)
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.contracts.search import MeasuredExport, SharedSearch
from tasks.contracts.workspace import CHANGED, MODEL
from tasks.data.rows import QUERY
from tasks.foundation.errors import CodeError, ConfigError
from tasks.foundation.process import code_version
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.export.export import export_model, exported_outputs, score
from tasks.worker.export.export_proof import Against, make_exports
from tasks.worker.export.model_card import NAME, model_card
from tasks.worker.model.label_heads import classify, label_outputs
from tasks.worker.model.released_code import MODEL_KIND, needs_trust
from tasks.worker.process.job import Job
from tasks.worker.process.shared_work import Asking, answer, asking
from tasks.worker.search.changes import compare, holdout_queries, known_pairs, shared_items
from tasks.worker.search.consumer import Searched, about_released, compare_models, search
from tasks.worker.search.divided import DividedIndex, VectorShares
from tasks.worker.search.index import Index
from tasks.worker.search.proof import (
    FewChanges,
    Proof,
    few_changes,
    prove,
    prove_changes,
    sample_items,
    trained_vectors,
)
from tasks.worker.training.checkpoint import ModelParts, load_released

MOST_DIFFERENCE = 1e-3  # probability; vectors with a cosine of 0.9999 differ by less
MOST_RELATIVE_DIFFERENCE = 1e-3  # label head's output, as a share of the largest output


def head_difference(job: Job, parts: ModelParts, queries: pa.Table, exported: np.ndarray, folder: Path) -> float | None:
    """Return the largest difference between probabilities of the exported and trained head; None without a head.

    If the head sees an item too, it gets the vector of another query: items' vectors are checked elsewhere.

    Args:
        exported: the exported model's vectors of the queries, float32 (queries, width).

    Raises:
        CodeError: the difference is above MOST_DIFFERENCE.
    """
    model = parts.model
    if model.classifier is None or not queries.num_rows:
        return None
    ours = trained_vectors(job, parts, queries, "query")
    with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:  # as the vectors of the proof
        trained = classify(model, accelerator, ours, ours[::-1])
    differences = np.abs(trained - score(folder, exported, exported[::-1]))
    worst = int(np.argmax(differences))
    if not differences[worst] <= MOST_DIFFERENCE:  # true for NaN too
        raise CodeError(
            f"the exported classification head gives query {queries[QUERY][worst].as_py()!r} a probability that is "
            f"{differences[worst]:.6f} from that of the trained one; nothing was released"
        )
    return float(differences[worst])


def label_difference(
    job: Job, parts: ModelParts, queries: pa.Table, exported: np.ndarray, folder: Path
) -> float | None:
    """Return the largest difference between exported and trained label heads; arguments as above.

    The difference is a share of the largest output; None without a label head.

    Raises:
        CodeError: the difference is above MOST_RELATIVE_DIFFERENCE.
    """
    model, found = parts.model, []
    there = [name for name in model.shape.label_heads if (folder / name).is_dir()]
    if not there or not queries.num_rows:
        return None
    ours = trained_vectors(job, parts, queries, "query")
    for name in there:
        with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:
            trained = label_outputs(model, name, accelerator, ours, ours[::-1])
        differences = np.abs(trained - exported_outputs(folder, name, exported, exported[::-1])).max(axis=1)
        worst, largest = int(np.argmax(differences)), max(float(np.abs(trained).max()), 1e-9)
        found.append(float(differences[worst]) / largest)
        if not found[-1] <= MOST_RELATIVE_DIFFERENCE:  # true for NaN too
            raise CodeError(
                f"the exported head {name} gives query {queries[QUERY][worst].as_py()!r} an output that is "
                f"{differences[worst]:.6f} from that of the trained one; nothing was released"
            )
    return max(found)


VECTORS_KEPT_BYTES = 0  # the few searches read the shards, so that memory does not grow with the catalogue
LIBRARIES = ("torch", "transformers", "tokenizers", "sentence-transformers", "numpy")


class PreviousRelease(NamedTuple):
    """The previous release: its answers, and both models compared on common items."""

    earlier: Searched
    shared: SharedSearch


def run(job: Job) -> ReleaseOutcome | None:
    """Release as the first worker, or search some partitions for it; return the outcome as the first."""
    job = replace(job, rank=job.rank.apart)  # the first alone embeds
    return release(job) if job.share.index == 0 else answer(job, VectorShares(job).of)


def release(job: Job) -> ReleaseOutcome:
    """Export, check, search; a new export is committed only if it reproduces the released vectors.

    Raises:
        CodeError: the exported model's vectors differ from the released vectors, or those are of other items.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ReleaseInputs)
    with asking(job, VectorShares(job).of) as asked:
        return _released(job, inputs, asked)


def _released(job: Job, inputs: ReleaseInputs, asked: Asking | None) -> ReleaseOutcome:
    store, prefix = job.store, MODEL.key(version=inputs.model.version)
    with job.scratch() as scratch:
        with job.clock.phase("restoring"):
            parts = load_released(store, inputs.model)
            manifest = read_manifest(store, inputs.vectors)
        if manifest.facts["catalogue"] != inputs.catalogue.model_dump():
            raise CodeError(
                f"the vectors in {store.uri}/{inputs.vectors} are not those of the items in "
                f"{store.uri}/{inputs.catalogue.prefix}; run infer again; nothing was released"
            )
        if (few := few_changes(store, inputs)) is not None and _as_released(store, inputs, _sound):
            with job.clock.phase("productive"):
                return _refreshed(job, inputs, few, parts)
        with job.clock.phase("restoring"):
            index = _index(job, asked, inputs.vectors, inputs.model.of_items.version)
            queries = about_released(holdout_queries(store, inputs.rows, job.config), index)
            folder_before = _folder_before(store, inputs)
        with job.clock.phase("productive"):
            kept = _as_released(store, inputs, _whole)
            folder = store.local(prefix) if kept else _export(job, inputs, parts, scratch)
            proof = prove(job, inputs, index, parts, queries, folder, folder_before)
            probed = queries.slice(0, job.config.release.probe_rows)
            of_head = head_difference(job, parts, probed, proof.vectors[: probed.num_rows], folder)
            of_labels = label_difference(job, parts, probed, proof.vectors[: probed.num_rows], folder)
            pairs = known_pairs(store, inputs.rows, job.config, queries)
            searched, compared = _search(job, asked, inputs, queries, index, proof, pairs)
            exports: tuple[MeasuredExport, ...] = ()
            if kept is None:
                exports = _exports(job, inputs, parts, folder, proof, searched, queries, pairs)
                facts = {"model_version": inputs.model.version, "width": parts.model.width}
                kept = _committed(store, prefix, folder, facts)
            changes = _write_changes(job, inputs, compared, searched, queries)
    return ReleaseOutcome(
        model=prefix,
        model_sha256=kept.sha256,
        min_cosine=float(proof.items.min()),
        probed=len(proof.items),
        min_query_cosine=float(proof.queries.min()) if len(proof.queries) else None,
        head_difference=of_head,
        label_difference=of_labels,
        queries=queries.num_rows,
        metrics=searched.metrics,
        before=inputs.before.number if inputs.before else None,
        shared=compared.shared if compared else None,
        changes=changes,
        exports=exports,
        code=code_version(),
        libraries=_versions(),
    )


def _refreshed(job: Job, inputs: ReleaseInputs, few: FewChanges, parts: ModelParts) -> ReleaseOutcome:
    """Return the outcome of a refresh that changes few items: the model is released, and its measurements hold on."""
    assert inputs.carried is not None
    assert inputs.model_sha256 is not None
    cosines = prove_changes(job, inputs, few, parts)
    of, key = inputs.carried.release, CHANGED.key(run=job.spec.run_key)
    job.store.write(key, few.items.changes(of.number, few.now.manifest.facts["vectors"]).to_json())
    return ReleaseOutcome(
        model=of.model_prefix,
        model_sha256=inputs.model_sha256,
        min_cosine=float(cosines.min()),
        probed=len(cosines),
        metrics=inputs.carried.metrics,
        unsearched=few.unsearched,
        changes=key,
        code=code_version(),
        libraries=_versions(),
    )


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def _as_released(
    store: Store, inputs: ReleaseInputs, check: Callable[[Store, ReleaseInputs], Manifest]
) -> Manifest | None:
    """Return the manifest of the model's folder if its release vouches for it; None if it is to be exported.

    The folder itself never does: whoever may write to models/ can write a manifest too.
    """
    if inputs.model_sha256 is None:
        return None
    prefix = MODEL.key(version=inputs.model.version)
    try:
        manifest = check(store, inputs)
        expect_manifest(store, prefix, manifest, inputs.model_sha256)
        return manifest
    except MissingFolder:
        return None
    except CorruptFolder as error:
        print(f"{error}; it is in {quarantine(store, prefix)} now and is exported again", flush=True)
        return None


def _sound(store: Store, inputs: ReleaseInputs) -> Manifest:
    """Return the manifest of the model's folder after a look at its files, of which some are read each time."""
    prefix, turn = MODEL.key(version=inputs.model.version), inputs.carried.release.number if inputs.carried else 0
    manifest = read_manifest(store, prefix)
    if damage := find_damage(store, prefix, manifest, in_turn(manifest.files, turn)):
        raise CorruptFolder(sentence_of(damage))
    return manifest


def _whole(store: Store, inputs: ReleaseInputs) -> Manifest:
    return open_folder(store, MODEL.key(version=inputs.model.version), MODEL_KIND)[1]


def _committed(store: Store, prefix: str, source: Path, facts: dict[str, Any]) -> Manifest:
    """Commit the export. What an earlier attempt left moves to quarantine if it differs or is damaged."""
    try:
        commit(store, prefix, source, MODEL_KIND, facts)
        return open_folder(store, prefix, MODEL_KIND)[1]
    except (Conflict, CorruptFolder) as error:
        print(f"{error}; it is in {quarantine(store, prefix)} now", flush=True)
        return commit(store, prefix, source, MODEL_KIND, facts)


def _export(job: Job, inputs: ReleaseInputs, parts: ModelParts, folder: Path) -> Path:
    export_model(parts, job.config, inputs.model.version, folder)
    longest = job.config.infer.max_tokens
    (folder / NAME).write_text(model_card(parts, longest, job.config.heads.matryoshka, inputs), encoding="utf-8")
    return folder


def _exports(
    job: Job,
    inputs: ReleaseInputs,
    parts: ModelParts,
    folder: Path,
    proof: Proof,
    searched: Searched,
    queries: pa.Table,
    pairs: pa.Table,
) -> tuple[MeasuredExport, ...]:
    """Add the exports of `release.exports` that are as good as the model to its folder."""
    rows = job.config.release.probe_rows
    if not job.config.release.exports:
        return ()
    items, vectors = sample_items(job.store, inputs, searched.index, rows)
    if parts.items is not None:  # another model made those
        vectors = trained_vectors(job, replace(parts, items=None), items, "item")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # float16 vectors are not exactly of unit length
    against = Against(queries, proof.vectors, items, vectors, searched, pairs, rows)
    return make_exports(parts, job.config, inputs.model.version, folder, against)


def _folder_before(store: Store, inputs: ReleaseInputs) -> Path | None:
    """Return the previous release's model folder; None if missing or no longer readable."""
    if inputs.before is None:
        return None
    try:
        before = inputs.before
        folder, _ = open_folder(store, before.model_prefix, MODEL_KIND, before.model_sha256)
        needs_trust(folder)
        return folder
    # The folder may be pruned, or by another version of Millrace; the new release does not depend on it.
    except (MissingFolder, CorruptFolder, ConfigError) as error:
        print(f"release {inputs.before.number} can't be compared with: {error}", flush=True)
        return None


def _index(job: Job, asked: Asking | None, prefix: str, version: str, sha256: str | None = None) -> Index:
    if asked is None:
        return Index(job.store, prefix, version, VECTORS_KEPT_BYTES, sha256)
    return DividedIndex(job, asked, prefix, version, sha256)


def _search(
    job: Job,
    asked: Asking | None,
    inputs: ReleaseInputs,
    queries: pa.Table,
    index: Index,
    proof: Proof,
    pairs: pa.Table,
) -> tuple[Searched, PreviousRelease | None]:
    """Return the answers of the new release, and the comparison with the previous one.

    The comparison is None without a previous release, or if its files are no longer readable.
    """
    if inputs.before is not None and proof.vectors_before is not None:
        try:
            named = inputs.before
            before = _index(job, asked, named.vectors_prefix, named.vectors_by, named.vectors_sha256)
            both = shared_items(before, index)
            earlier = search(before, queries, proof.vectors_before, pairs, both[0])
            searched = search(index, queries, proof.vectors, pairs, both[1])
            return searched, PreviousRelease(earlier, compare_models(earlier, searched, int(both[0].sum())))
        except (MissingFolder, CorruptFolder) as error:
            print(f"release {inputs.before.number} can't be compared with: {error}", flush=True)
    return search(index, queries, proof.vectors, pairs), None


def _write_changes(
    job: Job, inputs: ReleaseInputs, compared: PreviousRelease | None, searched: Searched, queries: pa.Table
) -> str | None:
    if compared is None or inputs.before is None:
        return None
    key = CHANGED.key(run=job.spec.run_key)
    changes = compare(compared.earlier, searched, queries, (inputs.before.number, None), compared.shared)
    job.store.write(key, changes.to_json())
    return key
