"""Words that a shell proposes for values: spans of the workspace, and keys of the settings."""

from collections.abc import Iterator
from pathlib import Path

import typer


def spans(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the spans of a workspace that is a folder; of a bucket none, which would take too long."""
    folder = Path(ctx.params.get("workspace") or "workspace").expanduser() / "spans"
    return sorted(each.name for each in folder.glob(f"{incomplete}*")) if folder.is_dir() else []


def assignments(incomplete: str) -> list[str]:
    """Return the settings that begin so, as in `train.epochs=`."""
    return [f"{key}=" for key in _keys(incomplete)]


def setting_keys(incomplete: str) -> list[str]:
    """Return the keys that begin so, as in `train.epochs`."""
    return list(_keys(incomplete))


def _keys(incomplete: str) -> Iterator[str]:
    from configs.keys import EACH, NAME, all_keys  # not for `--help`

    for key in all_keys(None):
        if key.path.startswith(incomplete) and not key.is_section and EACH not in key.path and NAME not in key.path:
            yield key.path
