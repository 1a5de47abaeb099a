"""release: exports the evaluated model, checks the export, and searches the whole catalogue as users will.

Afterwards the control plane judges the measurements and moves the pointer to the current release.
"""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from infra.store.base import Conflict, Store
from infra.store.manifest import (
    CorruptFolder,
    Manifest,
    MissingFolder,
    commit,
    expect_manifest,
    open_folder,
    quarantine,
    read_manifest,
)
from infra.store.soundness import find_damage, in_turn, sentence_of
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.contracts.search import SharedSearch
from tasks.contracts.workspace import CHANGED, MODEL
from tasks.foundation.code_version import code_version
from tasks.foundation.errors import CodeError, ConfigError
from tasks.worker.export.export import export_model
from tasks.worker.export.head_proof import head_difference, label_difference
from tasks.worker.export.model_card import NAME, model_card
from tasks.worker.model.released_code import needs_trust
from tasks.worker.process.job import Job
from tasks.worker.search.changes import compare, holdout_queries, known_pairs, shared_items
from tasks.worker.search.index import Index
from tasks.worker.search.measure import (
    MODEL_KIND,
    Searched,
    about_released,
    compare_models,
    released_folder,
    search,
)
from tasks.worker.search.proof import Proof, prove
from tasks.worker.search.refreshed import FewChanges, few_changes, prove_changes
from tasks.worker.training.checkpoint import ModelParts, load_parts

VECTORS_KEPT_BYTES = 0  # the few searches read the shards, so that memory does not grow with the catalogue
LIBRARIES = ("torch", "transformers", "tokenizers", "sentence-transformers", "numpy")


class PreviousRelease(NamedTuple):
    """The previous release: its answers, and both models compared on common items."""

    earlier: Searched
    shared: SharedSearch


def run(job: Job) -> ReleaseOutcome:
    """Export, check, search; a new export is committed only if it reproduces the released vectors.

    Raises:
        CodeError: the exported model's vectors differ from the released vectors, or those are of other items.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ReleaseInputs)
    store, prefix = job.store, MODEL.key(version=inputs.model.version)
    with job.scratch() as scratch:
        with job.clock.phase("restoring"):
            parts = load_parts(store, inputs.model.checkpoint)
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
            index = Index(store, inputs.vectors, inputs.model.version, VECTORS_KEPT_BYTES)
            queries = about_released(holdout_queries(store, inputs.rows, job.config), index)
            folder_before = _folder_before(store, inputs)
        with job.clock.phase("productive"):
            kept = _as_released(store, inputs, _whole)
            folder = store.local(prefix) if kept else _export(job, inputs, parts, scratch)
            proof = prove(job, inputs, index, parts, queries, folder, folder_before)
            probed = queries.slice(0, job.config.release.probe_rows)
            of_head = head_difference(job, parts, probed, proof.vectors[: probed.num_rows], folder)
            of_labels = label_difference(job, parts, probed, proof.vectors[: probed.num_rows], folder)
            if kept is None:
                facts = {"model_version": inputs.model.version, "width": parts.model.width}
                kept = _committed(store, prefix, folder, facts)
            searched, compared = _search(job, inputs, queries, index, proof)
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
        code=code_version(),
        libraries=_versions(),
    )


def _refreshed(job: Job, inputs: ReleaseInputs, few: FewChanges, parts: ModelParts) -> ReleaseOutcome:
    """Return the outcome of a refresh that changes few items: the model is released, and its measurements hold on."""
    assert inputs.carried is not None
    assert inputs.model_sha256 is not None
    cosines = prove_changes(job, inputs, few, parts)
    of, key = inputs.carried.release, CHANGED.key(run=job.spec.run_key)
    job.store.write(key, few.items.changes(of.number, few.vectors.facts["vectors"]).to_json())
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


def _folder_before(store: Store, inputs: ReleaseInputs) -> Path | None:
    """Return the previous release's model folder; None if missing or no longer readable."""
    if inputs.before is None:
        return None
    try:
        folder = released_folder(store, inputs.before)
        needs_trust(folder)
        return folder
    # The folder may be pruned, or by another version of Millrace; the new release does not depend on it.
    except (MissingFolder, CorruptFolder, ConfigError) as error:
        print(f"release {inputs.before.number} can't be compared with: {error}", flush=True)
        return None


def _search(
    job: Job, inputs: ReleaseInputs, queries: pa.Table, index: Index, proof: Proof
) -> tuple[Searched, PreviousRelease | None]:
    """Return the answers of the new release, and the comparison with the previous one.

    The comparison is None without a previous release, or if its files are no longer readable.
    """
    store, pairs = job.store, known_pairs(job.store, inputs.rows, job.config, queries)
    if inputs.before is not None and proof.vectors_before is not None:
        try:
            named = inputs.before
            before = Index(store, named.vectors_prefix, named.model_version, VECTORS_KEPT_BYTES, named.vectors_sha256)
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
