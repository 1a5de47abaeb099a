"""States of checkpoints, for tests that need no weights."""

from __future__ import annotations

from typing import Any

from tasks.contracts.checkpoints import CheckpointState


def checkpoint_state(step: int, **changes: Any) -> CheckpointState:
    """The state of a complete first run's checkpoint, with `changes`."""
    state: dict[str, Any] = {
        "lineage": "main",
        "run_key": "run",
        "step": step,
        "first_step": 0,
        "complete": True,
        "consumed": (),
        "parent": None,
        "seed": 17,
        "losses": (),
        "curve": (),
    }
    return CheckpointState(**(state | changes))
