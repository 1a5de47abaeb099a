"""docs/neuron-codes.md, written whole from the table by which failures are classified. `make docs` rewrites it."""

from __future__ import annotations

from pathlib import Path

from tasks.foundation.neuron_errors import COMPILER_ERRORS, STATUSES

PAGE = Path(__file__).resolve().parents[2] / "docs/neuron-codes.md"
SDK = "https://github.com/aws-neuron/aws-neuron-sdk/blob/master"
_HEAD = """# Codes of the Neuron SDK

What a code of the runtime or the compiler means for a run. It is looked for in errors, and in the log of a process that
died without one; the first row that fits is the cause. The classes, and which of them are retried, are in
[runbook.md](runbook.md). This page is a copy of `tasks/foundation/neuron_errors.py`, made by `make docs`.

Beyond these tables: a line of the kernel with `NEURON_HW_ERR=` is HOST; a compiler that was killed (`[F137]`,
`SIGKILL`) is OOM, as the memory of the machine ran out; any other failure of neuronx-cc is COMPILE. No code has been
seen on a machine yet.
"""


def page() -> str:
    compiler = [
        (", ".join(f"NCC_{code}" for code in error.codes), "COMPILE", error.meaning, error.action, error.source)
        for error in COMPILER_ERRORS
    ]
    runtime = [
        (f"{code} NRT_{status.name}", status.failure.value, status.meaning, status.action, status.source)
        for code, status in STATUSES.items()
    ]
    return f"{_HEAD}\n## Compiler\n\n{_table(compiler)}\n## Runtime\n\n{_table(runtime)}"


def _table(rows: list[tuple[str, str, str, str, str]]) -> str:
    lines = ["| code | class | meaning | what to do | source |", "|---|---|---|---|---|"]
    for code, failure, meaning, action, source in rows:
        name = source.rpartition("/")[2]
        lines.append(f"| {code} | {failure} | {meaning} | {action} | [{name}]({SDK}/{source}) |")
    return "\n".join(lines) + "\n"
