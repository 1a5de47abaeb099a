"""`millrace skip`: a span that no run takes, with the reason."""

from flows.cli.terminal.console import say
from flows.cli.terminal.run_options import RunOptions
from tasks.planning import skips
from tasks.planning.skips import Skip


def skip(options: RunOptions, span: str, reason: str) -> Skip:
    """Record it. Raises as `tasks.planning.skips.skip` does."""
    return skips.skip(options.store, options.config(), span, reason)


def show(made: Skip) -> None:
    """Print what was recorded, and what ends it."""
    say(f"{made.span.name} v{made.span.version} is skipped: {made.reason}", "A corrected version of it is not.")
