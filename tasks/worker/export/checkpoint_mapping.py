"""Maps the names of weights from other programs to the model's own, by rules on prefixes and by shapes.

It sees only names and shapes; `import_checkpoint.py` reads the file and moves the tensors.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]

ENCODER = "encoder."
# Prefixes that DataParallel and the like add; in any number and order.
OUTER = ("module.", "model.")
# Added to any module inside a model by torch.compile, FSDP and activation checkpointing.
INNER = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
# Prefixes of the encoder in sentence-transformers, and in Hugging Face models with a head. Without a head there is no
# prefix, and its layers are called encoder.* like our whole encoder.
FAMILIES = ("0.auto_model.", "0.model.", "auto_model.", "bert.", "roberta.", "distilbert.")
# Not needed here: positions are computed, no token is ever predicted, and the pooler is not used.
IGNORED = re.compile(
    r"(.*\.)?(position_ids|token_type_ids)|(.*\.)?pooler\..*|(cls|lm_head|vocab_(projector|transform|layer_norm))\..*"
)
# Names of LayerNorm weights in BERT's first checkpoints.
OLD_ENDINGS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
LISTED = 10  # names of each kind in a message
SIMILAR = 0.7  # of difflib's ratio: below it a nearest name would mislead


@dataclass(frozen=True)
class WrongShape:
    """A tensor with the name of `ours` and another shape."""

    name: str
    ours: str
    shape: Shape
    expected: Shape


@dataclass(frozen=True)
class Match:
    """Which tensor of a file is which of the model. Names are the file's, except in `missing`: the model's."""

    mapped: dict[str, str]  # the model's name -> the file's
    ignored: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong_shapes: tuple[WrongShape, ...]
    doubled: tuple[tuple[str, str, str], ...]  # two names of the file for the same one of the model


def match_names(theirs: Mapping[str, Shape], ours: Mapping[str, Shape]) -> Match:
    """Find the tensor of the model for every tensor of a file; each is matched separately."""
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
    """Return why the weights can't be imported, with at most ten names of each kind; None if they can.

    The encoder must be complete and no larger than the model's. A head (interaction, projection, classifier) must be
    complete or absent. Other tensors, such as a head for another task, do not matter.
    """
    absent = [name for name in match.missing if _is_needed(name, match)]
    surplus = [name for name in match.unexpected if _is_inside(name, match)]
    if not (absent or surplus or match.wrong_shapes or match.doubled):
        return None
    others = [name for name in match.unexpected if name not in surplus]
    every = list(ours)
    kinds = (
        ("the model has these, the file does not", absent),
        ("the file has these inside the same parts, the model does not", _with_nearest(surplus, match.missing, every)),
        ("of another shape", [_shapes(wrong) for wrong in match.wrong_shapes]),
        ("two for the same tensor", [f"{first} and {second} (both {own})" for first, second, own in match.doubled]),
        ("the model has nothing similar to these", _with_nearest(others, match.missing, every)),
    )
    lines = [f"  {kind} ({len(names)}): {_listed(names)}" for kind, names in kinds if names]
    return "\n".join([f"{len(match.mapped)} tensors fit, but not all that must:", *lines])


def _candidates(name: str) -> Iterator[str]:
    """Yield the names that the model may have for a tensor, the likeliest first."""
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
    """Return whether a tensor is needed: all of the encoder except its pooler, and a head if part of it is there."""
    part = name.partition(".")[0]
    if part == ENCODER.rstrip("."):
        return IGNORED.fullmatch(name) is None
    return any(own.partition(".")[0] == part for own in match.mapped)


def _is_inside(name: str, match: Match) -> bool:
    """Return whether a tensor is in the same part as mapped ones, as an extra layer is: then it is another model."""
    mapped_parts = {tuple(own.split(".")[:2]) for own in match.mapped}
    return any(tuple(candidate.split(".")[:2]) in mapped_parts for candidate in _candidates(name))


def _with_nearest(names: list[str], free: Sequence[str], every: Sequence[str]) -> list[str]:
    """Return the names, the first ones with the most similar name of the model; unmatched ones are preferred."""
    shown = []
    for name in names[:LISTED]:
        near = _nearest(name, free) or _nearest(name, every)
        shown.append(f"{name} (nearest: {near})" if near else name)
    return shown + names[LISTED:]


def _nearest(name: str, among: Sequence[str]) -> str | None:
    *_, likeliest = _candidates(name)
    ends = {own.removeprefix(ENCODER): own for own in among}  # with the prefix all of them would be similar
    near = difflib.get_close_matches(likeliest.removeprefix(ENCODER), ends, n=1, cutoff=SIMILAR)
    return ends[near[0]] if near else None


def _shapes(wrong: WrongShape) -> str:
    return f"{wrong.name} is {_product(wrong.shape)} in the file, {_product(wrong.expected)} in the model"


def _product(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + rest
