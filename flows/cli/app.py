"""The command `millrace`: which commands there are. What they do is imported when a command runs, not before.

Results go to standard output, everything else to standard error; so `--json` leaves pure JSON on the former.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from flows.cli.commands import operation, results, work
from tasks.errors import CancelledError

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Work": (
        work.ingest,
        work.run,
        work.backfill,
        work.backfills,
        work.backfill_control,
        work.parity,
        work.warmup,
        work.import_checkpoint,
    ),
    "Results": (
        results.status,
        results.releases,
        results.rollback,
        results.report,
        results.history,
        results.metrics,
        results.serve,
    ),
    "Operation": (
        operation.freshness,
        operation.doctor,
        operation.hosts,
        operation.reap,
        operation.deploy,
        operation.up,
        operation.down,
    ),
}


class _Interruptible(TyperGroup):
    """Lets Ctrl-C and SIGTERM end with the exit code of their class instead of typer's."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            how = str(error) or "Ctrl-C"
            raise CancelledError(f"stopped by {how}; what was finished is kept") from None


app = typer.Typer(
    cls=_Interruptible,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `main` tells errors
    help="Keep an embedding model, and the vectors it produces, fresh: span by span, from data to release.",
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
