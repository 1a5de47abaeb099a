"""The types of the flows' parameters, which define the form in the Prefect UI.

A `Literal` becomes a dropdown; the form checks patterns and bounds. The help text of a field is the parameter's line in
the flow's docstring. Callers may give None; the schema hides that, or the form would first ask for a type.

Alone, since every flow imports them.
"""

from typing import Annotated

from pydantic import Field, WithJsonSchema

_SPAN = r"\d{4}(-\d{2}-\d{2}|-W\d{2}|-\d{2}|-Q[1-4])?"

Workspace = Annotated[str, Field(min_length=1)]
SpanName = Annotated[str, Field(pattern=f"^{_SPAN}$")]
AnySpan = Annotated[
    str | None,
    Field(pattern=f"^({_SPAN})?$"),
    WithJsonSchema({"type": "string", "pattern": f"^({_SPAN})?$"}),
]
ConfigFile = Annotated[str | None, WithJsonSchema({"type": "string"})]
TimeZone = Annotated[str | None, WithJsonSchema({"type": "string"})]
Overrides = tuple[Annotated[str, Field(pattern=r"^[^=\s]+=")], ...]
Sides = Annotated[tuple[str, ...], Field(min_length=1, max_length=8)]
Seeds = Annotated[int, Field(ge=1, le=20)]
Parallel = Annotated[int, Field(ge=1, le=16)]
Reason = Annotated[str, Field(max_length=500)]
GraceMinutes = Annotated[float, Field(ge=0)]
