"""Names of weights from elsewhere matched with the model's own: rules on prefixes, tried in order, and shapes.

It sees names and shapes alone; `import_checkpoint.py` reads the file and moves the tensors.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]

ENCODER = "encoder."
# Put around a model at its beginning, by DataParallel and the like; in any number and order.
OUTER = ("module.", "model.")
# Put around any module inside it, by torch.compile, FSDP and activation checkpointing.
INNER = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
# Where others keep the encoder: sentence-transformers, and Hugging Face models with a head. Without a head it has no
# prefix, and its layers are called encoder.* like our whole encoder.
FAMILIES = ("0.auto_model.", "0.model.", "auto_model.", "bert.", "roberta.", "distilbert.")
# Of no use here: positions are counted anew, nothing is ever unmasked, and the pooler is not asked.
IGNORED = re.compile(
    r"(.*\.)?(position_ids|token_type_ids)|(.*\.)?pooler\..*|(cls|lm_head|vocab_(projector|transform|layer_norm))\..*"
)
# What BERT's first checkpoints call the weights of a LayerNorm.
OLD_ENDINGS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
LISTED = 10  # names of each kind in a message
SIMILAR = 0.7  # of difflib's ratio: below it a nearest name would mislead


@dataclass(frozen=True)
class WrongShape:
    """A tensor that belongs to `ours` by its name, and does not fit."""

    name: str
    ours: str
    shape: Shape
    expected: Shape


@dataclass(frozen=True)
class Match:
    """What of a file goes where. Names are the file's, but those in `missing`, which are the model's."""

    mapped: dict[str, str]  # the model's name -> the file's
    ignored: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong_shapes: tuple[WrongShape, ...]
    doubled: tuple[tuple[str, str, str], ...]  # two names of the file that mean the same one of the model


def match_names(theirs: Mapping[str, Shape], ours: Mapping[str, Shape]) -> Match:
    """Find for every tensor of a file the one of the model that it is; each is matched on its own."""
    mapped: dict[str, str] = {}
    ignored, unexpected, wrong_shapes, doubled = [], [], [], []
    for name, shape in theirs.items():
        own = next((candidate for candidate in _candidates(name) if candidate in ours), None)
        if IGNORED.fullmatch(_unwrapped(name)) and (own is None or shape != ours[own]):
            ignored.append(name)
        elif own is None:
            unexpected.append(name)
        elif own in mapped:
            doubled.append((mapped[own], name, own))
        elif shape != ours[own]:
            wrong_shapes.append(WrongShape(name, own, shape, ours[own]))
        else:
            mapped[own] = name
    fitting = mapped.keys() | {wrong.ours for wrong in wrong_shapes}
    return Match(
        mapped=mapped,
        ignored=tuple(ignored),
        missing=tuple(name for name in ours if name not in fitting),
        unexpected=tuple(unexpected),
        wrong_shapes=tuple(wrong_shapes),
        doubled=tuple(doubled),
    )


def refusal(match: Match, ours: Iterable[str]) -> str | None:
    """Why the weights can't be taken, as a list with at most ten names of each kind; None where they can.

    The encoder must be there, whole, and no larger than the model's. A head (interaction, projection, classifier) is
    there as a whole or not at all. What belongs to neither, like a head for another task, is no obstacle.
    """
    lacking = [name for name in match.missing if _is_needed(name, match)]
    surplus = [name for name in match.unexpected if _is_inside(name, match)]
    if not (lacking or surplus or match.wrong_shapes or match.doubled):
        return None
    others = [name for name in match.unexpected if name not in surplus]
    every = list(ours)
    kinds = (
        ("the model has these, the file does not", lacking),
        ("the file has these inside the same parts, the model does not", _with_nearest(surplus, match.missing, every)),
        ("of another shape", [_shapes(wrong) for wrong in match.wrong_shapes]),
        ("two for one", [f"{first} and {second} (both {own})" for first, second, own in match.doubled]),
        ("nothing of the model is like these", _with_nearest(others, match.missing, every)),
    )
    lines = [f"  {kind} ({len(names)}): {_listed(names)}" for kind, names in kinds if names]
    return "\n".join([f"{len(match.mapped)} tensors fit, but not all that must:", *lines])


def _candidates(name: str) -> Iterator[str]:
    """Names that the model may have for it, the likeliest first."""
    bare = _unwrapped(name)
    yield bare
    family = next((family for family in FAMILIES if bare.startswith(family)), "")
    yield ENCODER + bare.removeprefix(family)


def _unwrapped(name: str) -> str:
    for wrapper in INNER:
        name = name.replace(wrapper, "")
    while outer := next((outer for outer in OUTER if name.startswith(outer)), None):
        name = name.removeprefix(outer)
    for old, new in OLD_ENDINGS.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return name


def _is_needed(name: str, match: Match) -> bool:
    """The encoder but for its pooler is needed always, a head once some of it is there."""
    part = name.partition(".")[0]
    if part == ENCODER.rstrip("."):
        return IGNORED.fullmatch(name) is None
    return any(own.partition(".")[0] == part for own in match.mapped)


def _is_inside(name: str, match: Match) -> bool:
    """Whether it lies beside mapped tensors: a layer too many, an adapter. Without it that would be another model."""
    beside = {tuple(own.split(".")[:2]) for own in match.mapped}
    return any(tuple(candidate.split(".")[:2]) in beside for candidate in _candidates(name))


def _with_nearest(names: list[str], free: Sequence[str], every: Sequence[str]) -> list[str]:
    """The names that will be shown, each with the most similar one of the model if any is; those still free first."""
    told = []
    for name in names[:LISTED]:
        near = _nearest(name, free) or _nearest(name, every)
        told.append(f"{name} (nearest: {near})" if near else name)
    return told + names[LISTED:]


def _nearest(name: str, among: Sequence[str]) -> str | None:
    *_, likeliest = _candidates(name)
    ends = {own.removeprefix(ENCODER): own for own in among}  # the prefix alone would make all of them similar
    near = difflib.get_close_matches(likeliest.removeprefix(ENCODER), ends, n=1, cutoff=SIMILAR)
    return ends[near[0]] if near else None


def _shapes(wrong: WrongShape) -> str:
    return f"{wrong.name} is {_product(wrong.shape)} in the file, {_product(wrong.expected)} in the model"


def _product(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + rest
