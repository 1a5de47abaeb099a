"""The types of the flows' parameters: what the form in the Prefect UI offers and what it refuses.

Patterns and bounds reach the form through the flow's schema, and a `Literal` becomes a dropdown. The help text of a
parameter is its line in the flow's docstring; titles, descriptions and examples given here would not be shown. What
may be left out is empty by default: None would make the form ask for a type before it asks for a value, so callers may
give it and the form does not know it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

_SPAN = r"\d{4}(-\d{2}-\d{2}|-W\d{2}|-\d{2}|-Q[1-4])"

Workspace = Annotated[str, Field(min_length=1)]
SpanName = Annotated[str, Field(pattern=f"^{_SPAN}$")]
AnySpan = Annotated[
    str | None,
    Field(pattern=f"^({_SPAN})?$"),
    WithJsonSchema({"type": "string", "pattern": f"^({_SPAN})?$"}),
]
Place = Annotated[str | None, WithJsonSchema({"type": "string"})]
TimeZone = Annotated[str | None, WithJsonSchema({"type": "string"})]
Overrides = tuple[Annotated[str, Field(pattern=r"^[^=\s]+=")], ...]
Accelerator = Literal["cpu", "cuda", "xla", "neuron"]
Stages = Annotated[tuple[Literal["train", "evaluate", "infer", "release"], ...], Field(min_length=1)]
Parallel = Annotated[int, Field(ge=1, le=16)]
Reason = Annotated[str, Field(max_length=500)]
GraceMinutes = Annotated[float, Field(ge=0)]
