"""The base of all records that pass between processes or are stored in the workspace: frozen, strict, JSON."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

_BESIDE: dict[str, Any] = {"decides": False}


class Record(BaseModel):
    """A frozen value. Unknown keys are refused, so an old reader never misreads a new writer's record."""

    # A number may be NaN (an undefined metric), which could not be read back from JSON null.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def to_json(self) -> bytes:
        """Return indented JSON with a newline at the end, since people read the workspace too."""
        return self.model_dump_json(indent=2, by_alias=True).encode() + b"\n"


def beside(default: Any = ..., **constraints: Any) -> Any:
    """Return a field of settings or inputs whose value does not change the result, so results are reused.

    Takes the arguments of `Field`. All other fields decide.
    """
    return Field(default, json_schema_extra=_BESIDE, **constraints)


def decides(field: FieldInfo) -> bool:
    """Return True if another value of the field can change the result."""
    return field.json_schema_extra != _BESIDE
