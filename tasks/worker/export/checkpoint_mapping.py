"""Finds a model's weights in another program's file: by their own names, behind one wrapper prefix.

This module sees only names and shapes; `import_checkpoint.py` reads the file and moves the tensors.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Shape = tuple[int, ...]

_ENCODER = "encoder."
_UNUSED = re.compile(r"encoder\.(.*\.)?(position_ids|token_type_ids|pooler\..*)")  # ids are computed
_LISTED = 10  # names of each kind in a message


class Match(NamedTuple):
    """The model's tensors in a file."""

    mapped: Mapping[str, str]  # the model's name -> the file's
    ignored: tuple[str, ...]  # in the file only
    missing: tuple[str, ...]  # in the model only


def match_names(theirs: Mapping[str, Shape], ours: Mapping[str, Shape]) -> Match:
    """Find the model's tensors in a file.

    Raises:
        ValueError: the file's encoder is incomplete or larger than the model's; a head (interaction, projection,
            classifier) is incomplete; or a tensor has another shape. Names at most ten of each kind.
    """
    own = _own_names(theirs, ours)
    mapped = {name: own[name] for name in ours if name in own}
    parts = {_part(name) for name in mapped}
    needed = [name for name in (*ours, *own) if _part(name) in parts and not _UNUSED.fullmatch(name)]
    wrong = [name for name, their in mapped.items() if theirs[their] != ours[name]]
    kinds = {
        "the model has these, the file does not": [name for name in needed if name not in own],
        "the file has these inside the same parts, the model does not": [own[n] for n in needed if n not in ours],
        "of another shape": [
            f"{mapped[name]} is {_product(theirs[mapped[name]])} in the file, {_product(ours[name])} in the model"
            for name in wrong
        ],
    }
    if any(kinds.values()):
        lines = [f"  {kind} ({len(names)}): {_listed(names)}" for kind, names in kinds.items() if names]
        raise ValueError("\n".join([f"{len(mapped) - len(wrong)} tensors fit, but not all that must:", *lines]))
    taken = set(mapped.values())
    ignored = tuple(name for name in theirs if name not in taken)
    return Match(mapped, ignored, tuple(name for name in ours if name not in mapped))


def _own_names(theirs: Mapping[str, Shape], ours: Mapping[str, Shape]) -> dict[str, str]:
    """Map the model's names to the file's; names without the encoder's prefix are skipped.

    The file may hold the whole model, e.g. `module.encoder.embeddings...`, or its encoder alone, e.g. `embeddings...`,
    `bert.embeddings...` or `0.auto_model.embeddings...`.
    """
    first = next(name for name in ours if name.startswith(_ENCODER)).removeprefix(_ENCODER)
    found = [name for name in theirs if f".{name}".endswith(f".{first}")]
    if not found:
        raise ValueError(f"There is no {first} in the file, under any prefix; it has {_listed([*theirs])}.")
    if len(found) > 1:
        raise ValueError(f"The encoder is in the file more than once: {_listed(found)}; save the one to import.")
    before = found[0].removesuffix(first)
    prefix, added = (before.removesuffix(_ENCODER), "") if f".{before}".endswith(f".{_ENCODER}") else (before, _ENCODER)
    return {added + name.removeprefix(prefix): name for name in theirs if name.startswith(prefix)}


def _part(name: str) -> str:
    return name.partition(".")[0]


def _product(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest
