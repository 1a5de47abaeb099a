"""The code in the folder of a released model with features: its files, and a check before they are run.

This is not a signature: anybody who may write to the workspace can change a model's numbers, but can't run code in the
processes of its readers.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.foundation.errors import ConfigError
from tasks.worker.model.features import FILE

FILES = ("interaction.py", "released_modules.py")
MODULES = ("released_modules.FeatureTransformer", "released_modules.FeatureInteraction")
_LIBRARIES = ("sentence_transformers.", "torch.nn.modules.")  # prefixes of classes that a folder may name


def installed_copy(name: str) -> Path:
    """Return the path of this installation's own copy of a file."""
    return Path(__file__).with_name(name)


def copy_code(folder: Path) -> None:
    """Copy the code files into the folder of a model with features."""
    for name in FILES:
        shutil.copyfile(installed_copy(name), folder / name)


def needs_trust(folder: Path) -> bool:
    """Return True if the model in a folder needs `trust_remote_code`: it has features.

    Raises:
        ConfigError: it does, and the folder holds or names code that is not this installation's own.
    """
    if not (folder / FILE).is_file():
        return False
    for problem in _problems(folder):
        raise ConfigError(
            f"{problem}, so no code of this model is run: somebody changed it, or another version of Millrace made it. "
            "Search with the version that `code` in the release's record names, go to another release (millrace "
            "rollback), or train a model with this version: millrace run"
        )
    return True


def _problems(folder: Path) -> Iterator[str]:
    """Yield a message for each foreign piece of code that `trust_remote_code` would run."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if name not in FILES or path.read_bytes() != installed_copy(name).read_bytes():
            yield f"{path} is not this installation's own file"
    for path in sorted(folder.rglob("*.json")):
        for key, value in _pairs(_content(path)):
            if key == "auto_map":
                yield f"{path} has an auto_map, which names code elsewhere"
            if key in ("type", "activation_function") and _names_code(path, key, value):
                yield f"{path} names {value}"


def _names_code(path: Path, key: str, value: Any) -> bool:
    if key == "type" and path.name != "modules.json":
        return False
    return not isinstance(value, str) or not (value in MODULES or value.startswith(_LIBRARIES))


def _pairs(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an object, or of the objects in a list; deeper levels name no code."""
    for each in content if isinstance(content, list) else [content]:
        if isinstance(each, dict):
            yield from each.items()


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None  # the libraries can't read it either
