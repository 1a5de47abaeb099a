"""The version of the running code, also for a copy without repository or installation, as in an image."""

import hashlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("configs", "infra", "tasks")  # a worker's code; its image has no other folders


def code_version(root: Path = ROOT) -> str:
    """Return the version in pyproject.toml, with a hash over the paths and the bytes of the Python files."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (root / folder).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return f"{version}+{digest.hexdigest()[:12]}"
