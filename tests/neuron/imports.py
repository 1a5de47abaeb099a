"""Imports every module that an image holds; standard library only. For tests/neuron/check.sh, inside the image."""

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

HOME = os.environ.get("MILLRACE_HOME", "/opt/millrace")
# Their clients are in an image only on request, as docs/publish.md says.
OPTIONAL = {
    "tasks.worker.export.lancedb": "lancedb",
    "tasks.worker.export.pgvector": "pgvector",
    "tasks.worker.export.opensearch": "opensearchpy",
    "tasks.worker.export.qdrant": "qdrant_client",
    "tasks.worker.devices.xla": "torch_xla",
}


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def modules(home: Path, there: Callable[[str], bool] = installed) -> Iterator[str]:
    """The modules in the folders of the project, but for those whose optional package is not there."""
    for top in ("configs", "infra", "tasks", "flows"):
        if (home / top).is_dir():
            for found in pkgutil.walk_packages([str(home / top)], f"{top}."):
                needed = OPTIONAL.get(found.name)
                main = found.name.endswith(".__main__")
                if not main and (needed is None or there(needed)):
                    yield found.name


if __name__ == "__main__":
    sys.path.insert(0, HOME)
    names = list(modules(Path(HOME)))
    for name in names:
        importlib.import_module(name)
    print(f"{len(names)} modules of {HOME} are imported")
    if not names:
        sys.exit(f"{HOME} holds none")
