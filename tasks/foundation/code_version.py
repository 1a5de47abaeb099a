"""Names the code that runs, also where it was copied without its repository, as into an image."""

import hashlib
import importlib.metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("configs", "infra", "tasks")  # what a worker needs; an image of a worker has no others


def code_version() -> str:
    """Return the version of the package, with a hash over the paths and the bytes of its Python files."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*.py")):
        digest.update(path.relative_to(_ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{importlib.metadata.version('millrace')}+{digest.hexdigest()[:12]}"
