"""The base of every record that crosses a process or lies in the workspace: frozen, strict, JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen value. Unknown keys are refused, so that an old reader never half-understands a new writer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> bytes:
        """Indented JSON, newline at the end: what lies in the workspace is meant to be read by people too."""
        return self.model_dump_json(indent=2).encode() + b"\n"
