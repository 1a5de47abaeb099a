"""Branches of a made-up past: after a rejected run the later ones go on from the last accepted checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from infra.store.base import Store
from tasks.contracts.references import CheckpointRef
from tasks.contracts.workspace import ACTIVE, BRANCH, PLAN, RESULT
from tasks.runs.branches import Active, Branch


def go_back(store: Store, keys: Sequence[str], rejected: int, accepted: int, branch: str) -> None:
    """Move all runs after the `rejected` one to a branch from the `accepted` one, which new runs continue.

    Args:
        keys: run keys by number, as `write_past` returns them.
    """
    base = _checkpoint(store, keys[accepted])
    store.write(BRANCH.key(lineage=branch), Branch(of=base.prefix.split("/")[1], base=base).to_json())
    store.write(ACTIVE.key(lineage="main"), Active(branch=branch).to_json())
    for key in keys[rejected + 1 :]:
        for record in (PLAN.key(run=key), RESULT.key(run=key, stage="train")):
            if store.exists(record):
                data = re.sub(rb'("lineages/)[^/"]+', rb"\1" + branch.encode(), store.read(record))
                data = re.sub(rb'("lineage": ?")[^"]+', rb"\1" + branch.encode(), data)
                store.write(record, data)
    if rejected + 1 < len(keys):
        first = PLAN.key(run=keys[rejected + 1])
        data = store.read(first)
        parent = re.search(rb'"parent": ?\{[^}]*\}', data)
        assert parent is not None
        store.write(first, data.replace(parent[0], b'"parent": ' + base.to_json()))


def _checkpoint(store: Store, key: str) -> CheckpointRef:
    found = re.search(rb'"checkpoint": ?(\{[^}]*\})', store.read(RESULT.key(run=key, stage="train")))
    assert found is not None
    return CheckpointRef.model_validate_json(found[1])
