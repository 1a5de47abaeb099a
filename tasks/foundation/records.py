"""The base of all records that pass between processes or are stored in the workspace: frozen, strict, JSON."""

import hashlib
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

_BESIDE: dict[str, Any] = {"decides": False}
_SEAL, _END = b',\n  "sha256": "', b"\n}\n"


class Record(BaseModel):
    """A frozen value. Unknown keys are refused, so an old reader never misreads a new writer's record."""

    # A number may be NaN (an undefined metric), which could not be read back from JSON null.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def to_json(self) -> bytes:
        """Return indented JSON with a newline at the end, since people read the workspace too."""
        return self.model_dump_json(indent=2, by_alias=True).encode() + b"\n"


class SealedRecord(Record):
    """A record whose file vouches for itself: its last key is the SHA-256 of all bytes before that key.

    A changed letter could name another run, and the file would still be valid. Files without the key are older.
    """

    def to_json(self) -> bytes:
        body = super().to_json().removesuffix(_END)
        return body + _sealed(body)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Return the record. Raises ValidationError: the JSON is invalid, or its SHA-256 is another one."""
        raw = json_data.encode() if isinstance(json_data, str) else bytes(json_data)
        body, key, rest = raw.rpartition(_SEAL)
        if not key:
            return super().model_validate_json(raw, **options)
        if key + rest != _sealed(body):
            changed = PydanticCustomError("changed", "its bytes were changed: they have another SHA-256 than it says")
            raise ValidationError.from_exception_data(cls.__name__, [{"type": changed, "input": rest}])
        return super().model_validate_json(body + _END, **options)


def _sealed(body: bytes) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode() + b'"' + _END


def beside(default: Any = ..., **constraints: Any) -> Any:
    """Return a field of settings or inputs whose value does not change the result, so results are reused.

    Takes the arguments of `Field`. All other fields decide.
    """
    return Field(default, json_schema_extra=_BESIDE, **constraints)


def decides(field: FieldInfo) -> bool:
    """Return True if another value of the field can change the result."""
    return field.json_schema_extra != _BESIDE
