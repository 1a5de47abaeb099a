"""The folder of a released model: the code in it, and a check before anything of it is opened.

A folder holds what `export` writes and nothing else: files, classes, settings. This is not a signature: anybody who may
write to the workspace can change a model's numbers, but can't run code in the processes of its readers.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from configs.schema.stages import ExportKind
from tasks.data.pretrained import Activation
from tasks.foundation.errors import ConfigError
from tasks.worker.model.features import FILE

MODEL_KIND = "model"
FILES = ("interaction.py", "released_modules.py")
LIBRARY = "sentence_transformers.models"
ACTIVATIONS: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
_FIRST = (f"{LIBRARY}.Transformer", "released_modules.FeatureTransformer")
_LATER = {
    "Pooling": f"{LIBRARY}.Pooling",
    "Dense": f"{LIBRARY}.Dense",
    "Interaction": "released_modules.FeatureInteraction",
    "Normalize": f"{LIBRARY}.Normalize",
}
_EXPORTS = "|".join(get_args(ExportKind))
_NAMES = re.compile(
    rf"""(config|config_sentence_transformers|sentence_bert_config|modules|features|millrace|generation_config
        |tokenizer|tokenizer_config|special_tokens_map|added_tokens|model\.safetensors\.index|MANIFEST)\.json
        |model(-\d+-of-\d+)?\.safetensors | README\.md
        |[^/]+/(config\.json|model\.safetensors)
        |exports/({_EXPORTS})/(model(-\d+)?\.(onnx|xml|bin|pt)|export\.json|tokenizer\.json)""",
    re.VERBOSE,
)
_INDEX = "model.safetensors.index.json"
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_NOT_FOR_LIBRARIES = re.compile(r"(features|millrace|tokenizer|MANIFEST)\.json|exports/.*")  # any word may be in them
_NAMES_CODE = ("auto_map", "auto_mapping", "trust_remote_code")
_NAMES_PACKAGES = ("quantization_config", "compression_config")  # a library imports the package that they name
_NAMES_KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
_SETTINGS = {
    "sentence_bert_config.json": {"max_seq_length", "do_lower_case"},
    "config_sentence_transformers.json": {"prompts", "similarity_fn_name"},
}


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
        ConfigError: the folder holds or names something that `export` of this installation doesn't write.
    """
    for problem in _problems(folder):
        raise ConfigError(
            f"{problem}, so nothing of this model is opened: somebody changed it, or another version of Millrace made "
            "it. Search with the version that `code` in the release's record names, go to another release (millrace "
            "rollback), or train a model with this version: millrace run"
        )
    return (folder / FILE).is_file()


def _problems(folder: Path) -> Iterator[str]:
    """Yield a message for each file, class or setting that could make a library run other code."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield f"{path} is a link"
        elif path.is_dir():
            continue
        elif not path.is_file():
            yield f"{path} is not a file"  # a pipe would be waited for
        elif name in FILES:
            if path.read_bytes() != installed_copy(name).read_bytes():
                yield f"{path} is not this installation's own file"
        elif not _NAMES.fullmatch(name):
            yield f"{path} is not this installation's own file"
        elif path.suffix == ".json" and not _NOT_FOR_LIBRARIES.fullmatch(name):
            yield from (f"{path} {words}" for words in _named(name, _content(path)))


def _named(name: str, content: Any) -> Iterator[str]:
    """Yield the problems in a JSON file that a library reads."""
    if content is None:
        yield "is not readable as JSON"
    if name == "modules.json":
        yield from _modules(content)
    for key, value in _pairs(content):
        if key in _NAMES_CODE:
            yield f"has an {key}, which names code elsewhere"
        if key in _NAMES_PACKAGES:
            yield f"has a {key}, which export does not write"
        if key in _NAMES_KERNELS and "/" in str(value):
            yield f"names {value}"
        if key == "activation_function" and value not in ACTIVATIONS.values():
            yield f"names {value}"
    if name == _INDEX and not _of_own_files(content):
        yield "names files that are not this model's weights"
    if name in _SETTINGS and not (isinstance(content, dict) and content.keys() <= _SETTINGS[name]):
        yield f"has other keys than {', '.join(sorted(_SETTINGS[name]))}"


def _of_own_files(index: Any) -> bool:
    files = index.get("weight_map") if isinstance(index, dict) else None
    return isinstance(files, dict) and all(_WEIGHTS.fullmatch(str(each)) for each in files.values())


def _modules(content: Any) -> Iterator[str]:
    for number, entry in enumerate(content if isinstance(content, list) else [content]):
        kind = entry.get("type") if isinstance(entry, dict) else None
        allowed: list[Any] = [
            *({"idx": number, "name": str(number), "path": "", "type": first} for first in _FIRST if number == 0),
            *(
                {"idx": number, "name": str(number), "path": f"{number}_{name}", "type": later}
                for name, later in _LATER.items()
            ),
        ]
        if entry not in allowed:
            yield f"names {kind}" if kind not in (*_FIRST, *_LATER.values()) else f"has another entry {number}: {entry}"


def _pairs(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of all objects at all depths, however deep."""
    left = [content]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield from each.items()
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8"))  # as the libraries read it: never in another encoding
    except (ValueError, RecursionError):
        return None
