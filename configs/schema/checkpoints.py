"""The interval between a training's checkpoints, as the configuration writes it: `50 steps`."""

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, WithJsonSchema

AUTO = "auto"

_INTERVAL = re.compile(r"[1-9][0-9]* (steps|seconds)")


def _checked(every: Any) -> Any:
    if every != AUTO and not (isinstance(every, str) and _INTERVAL.fullmatch(every)):
        raise ValueError(f"write it as '50 steps', '300 seconds' or '{AUTO}'")
    return every


_AS_TEXT = {"type": "string", "pattern": rf"^({_INTERVAL.pattern}|{AUTO})$"}
Every = Annotated[str, BeforeValidator(_checked), WithJsonSchema(_AS_TEXT)]


class Interval(NamedTuple):
    """A number of steps or seconds."""

    number: int
    unit: Literal["steps", "seconds"]


def interval_of(every: str) -> Interval | None:
    """Return the interval of `50 steps` or `300 seconds`; None for `auto`."""
    if every == AUTO:
        return None
    number, _, unit = every.partition(" ")
    return Interval(int(number), "steps" if unit == "steps" else "seconds")
