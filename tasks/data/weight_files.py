"""Names, shapes and types of the tensors in a model folder, read from the headers of its files without torch."""

import io
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.foundation.errors import ConfigError

# In the order in which transformers looks for them.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_MOST_HEADER_BYTES = 100_000_000  # limit of the safetensors format
_POINTER = b"version https://git-lfs"  # first line of a Git LFS pointer
_STORAGE_KINDS = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip


class Tensor(NamedTuple):
    """One stored tensor; `kind` is its type in the words of safetensors, as in F32."""

    shape: tuple[int, ...]
    kind: str


def weight_file(folder: Path) -> Path | None:
    """Return the file, or the index of files, that transformers takes the weights from; None if there is none."""
    return next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)


def read_tensors(folder: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a folder's weights by name; None if its files have no header that can be read alone.

    Raises:
        ConfigError: a file is missing, is a Git LFS pointer, or is damaged; names it.
    """
    first = weight_file(folder)
    if first is None:
        raise ConfigError(f"model.pretrained: {folder} has no {WEIGHT_FILES[0]}; give a local model folder")
    if not first.name.endswith(".index.json"):
        return _read_file(first)
    found: dict[str, Tensor] = {}
    for name in _shards(first):
        shard = folder / name
        if not shard.is_file():
            raise ConfigError(f"model.pretrained: {shard} is missing, which {first.name} names; copy the whole folder")
        tensors = _read_file(shard)
        if tensors is None:
            return None
        found |= tensors
    return found


def count_numbers(folder: Path) -> int | None:
    """Return the number of weights in a folder; None, and raises, as `read_tensors`."""
    tensors = read_tensors(folder)
    return None if tensors is None else sum(_numbers(each.shape) for each in tensors.values())


def _numbers(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _shards(index: Path) -> list[str]:
    try:
        named = json.loads(_without_pointer(index).read_text(encoding="utf-8"))["weight_map"]
        return sorted({str(name) for name in named.values() if Path(str(name)).name == str(name)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"model.pretrained: {index} is not readable as an index of weights: {error}") from error


def _without_pointer(file: Path) -> Path:
    with file.open("rb") as opened:
        if opened.read(len(_POINTER)) == _POINTER:
            raise ConfigError(
                f"model.pretrained: {file} is a Git LFS pointer of {file.stat().st_size} bytes, not the weights; run "
                f"git lfs pull in its repository, or download the file itself"
            )
    return file


def _read_file(file: Path) -> dict[str, Tensor] | None:
    _without_pointer(file)
    try:
        return _of_safetensors(file) if file.suffix == ".safetensors" else _of_torch(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, struct.error,
            pickle.UnpicklingError, zipfile.BadZipFile) as error:  # fmt: skip
        raise ConfigError(f"model.pretrained: {file} is cut off or damaged, copy it again: {error}") from error


def _of_safetensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors header: its length in 8 bytes, then JSON. Raises ValueError: the data are incomplete."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    end = max((each["data_offsets"][1] for each in header.values()), default=0)
    if (there := file.stat().st_size) < 8 + length + end:
        raise ValueError(f"{there:,} of {8 + length + end:,} bytes are there")
    return {name: Tensor(tuple(each["shape"]), str(each["dtype"])) for name, each in header.items()}


def _of_torch(file: Path) -> dict[str, Tensor] | None:
    """Read names, shapes and types of a state dict that torch.save wrote since version 1.6; None for an older file."""
    if not zipfile.is_zipfile(file):
        return None
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name))
        content = _ShapesAlone(io.BytesIO(archive.read(name))).load()
    if not isinstance(content, Mapping):
        raise ValueError("no state dict")
    return {str(name): each for name, each in content.items() if isinstance(each, Tensor)}


class _ShapesAlone(pickle.Unpickler):
    """Reads tensors' shapes. No code of the file runs: each name but the few of a state dict is refused."""

    def persistent_load(self, pid: Any) -> str:
        return str(pid[1])  # ("storage", kind, key, place, numbers)

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGE_KINDS:
            return _STORAGE_KINDS[name]
        known = {
            ("collections", "OrderedDict"): dict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it holds a Python object of {module}.{name}, which is not read")
        return known[module, name]


def _tensor(kind: str, _offset: int, shape: tuple[int, ...], *_: Any) -> Tensor:
    return Tensor(tuple(shape), kind)
