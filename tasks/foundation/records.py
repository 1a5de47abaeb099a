"""The base of every record that passes between processes or is stored in the workspace: frozen, strict, JSON."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

_BESIDE: dict[str, Any] = {"decides": False}


class Record(BaseModel):
    """A frozen value. Unknown keys are refused, so that an old reader never half-understands a new writer."""

    # A number may be NaN (an undefined metric); as JSON null it could not be read back.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def to_json(self) -> bytes:
        """Return indented JSON with a newline at the end: people read the workspace too."""
        return self.model_dump_json(indent=2, by_alias=True).encode() + b"\n"


def beside(default: Any = ..., **constraints: Any) -> Any:
    """Return a field of settings or inputs that does not decide the result: with another value it is the same work.

    Takes what `Field` takes. All other fields decide.
    """
    return Field(default, json_schema_extra=_BESIDE, **constraints)


def decides(field: FieldInfo) -> bool:
    """Return whether another value of a field makes it other work."""
    return field.json_schema_extra != _BESIDE
