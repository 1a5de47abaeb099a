"""The table of stages in docs/architecture.md: a copy of the names in `Stage` and of the files that bear them."""

from __future__ import annotations

import re

from configs.schema.config import Config
from tasks.contracts.stages import Stage
from tests.docs.folders import PAGE

_TABLE = re.compile(r"(^\| stage \| task \| worker .*?\n\|---.*?\n)(?:\|.*\n)*", re.M)


def page() -> str:
    """Return the page with the table as it is now."""
    sections = {field.alias or name for name, field in Config.model_fields.items()}
    rows = [
        f"| {stage} | `tasks/{stage}.py` | `tasks/worker/{stage}.py` | {f'`{stage}:`' if stage in sections else ''} "
        f"| `tests/tasks/worker/test_{stage}.py` |\n"
        for stage in Stage
    ]
    return _TABLE.sub(lambda found: found[1] + "".join(rows), PAGE.read_text())
