"""The files of a release, compared with their manifests before it serves and before a refresh."""

import contextlib

from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    MissingFolder,
    check_sizes,
    expect_manifest,
    open_files,
    read_manifest,
)
from infra.store.soundness import find_damage, set_apart
from tasks.contracts.runs import Release


def expect_whole(store: Store, release: Release) -> None:
    """Read the model and the vectors of a release, and compare every file with its checksum.

    Raises:
        MissingFolder, CorruptFolder: a file or a manifest is gone or damaged; names it.
    """
    for prefix, sha256 in _served(release):
        manifest = check_sizes(store, prefix)
        expect_manifest(store, prefix, manifest, sha256)
        open_files(store, prefix, manifest.kind)


def find_loss(store: Store, release: Release) -> str | None:
    """Return a sentence about a lost file of a release, its catalogue included; None if none is known. Reads no file.

    Lost is a file that is gone, has another size, or was set apart because its bytes differ.
    """
    for prefix, sha256 in (*_served(release), (release.catalogue.prefix, release.catalogue.sha256)):
        try:
            expect_manifest(store, prefix, check_sizes(store, prefix), sha256)
        except (MissingFolder, CorruptFolder) as error:
            return str(error)
    return None


def set_damaged_apart(store: Store, release: Release) -> list[str]:
    """Read every file of a release, its catalogue included, and move damaged ones to quarantine/.

    Returns:
        A sentence about each damaged file. An unreadable manifest is none: its folder can't be compared.
    """
    found: list[str] = []
    for prefix in (*(prefix for prefix, _ in _served(release)), release.catalogue.prefix):
        with contextlib.suppress(MissingFolder, CorruptFolder):
            manifest = read_manifest(store, prefix)
            damage = find_damage(store, prefix, manifest, manifest.files)
            set_apart(store, prefix, manifest, damage)
            found += damage.values()
    return found


def _served(release: Release) -> tuple[tuple[str, str | None], ...]:
    return (release.model_prefix, release.model_sha256), (release.vectors_prefix, release.vectors_sha256)
