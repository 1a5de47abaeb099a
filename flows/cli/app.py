"""The command `millrace`: its list of commands. Each command imports its code when it runs, so that `--help` is fast.

Results go to standard output, everything else to standard error, so `--json` prints pure JSON.
"""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from flows.cli.operation import commands as operation
from flows.cli.results import commands as results
from flows.cli.serving import commands as serving
from flows.cli.work import commands as work
from tasks.foundation.errors import CancelledError

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Work": (
        work.ingest,
        work.run,
        work.skip,
        work.refresh,
        work.gate,
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
        results.hold,
        results.publish,
        results.search,
        results.diff,
        results.report,
        results.history,
        results.metrics,
        serving.serve,
    ),
    "Operation": (
        operation.freshness,
        operation.ledger,
        operation.doctor,
        operation.smoke,
        operation.hosts,
        operation.reap,
        operation.prune,
        operation.deploy,
        operation.up,
        operation.down,
    ),
}


class _Interruptible(TyperGroup):
    """Raise CancelledError on Ctrl-C and SIGTERM, for the exit code of its class instead of typer's."""

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
    pretty_exceptions_enable=False,  # `main` prints errors
    help="Keep an embedding model and its vectors fresh: span by span, from data to release.",
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
