"""Vectors of two models can't be mixed: a reader of a folder names the model that its vectors must be by."""

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, Manifest
from tasks.data.items import VECTORS_KIND


def expect_vectors(store: Store, prefix: str, manifest: Manifest, model_version: str) -> None:
    """Raise CorruptFolder, which names both models, unless a folder holds vectors by this one."""
    by = manifest.facts.get("model_version")
    if manifest.kind != VECTORS_KIND or by != model_version:
        what = f"{store.uri}/{prefix} holds {manifest.kind} by {by}"
        raise CorruptFolder(f"{what}, expected {VECTORS_KIND} by {model_version}")
