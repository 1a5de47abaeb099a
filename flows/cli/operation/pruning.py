"""`millrace prune`: what nothing needs any more, listed or deleted."""

from flows.cli.terminal.console import note, say, show_table
from flows.presentation.wording import plural
from infra.store.base import Store
from tasks.upkeep.prune import prune as prune_workspace
from tasks.upkeep.prune_plan import PrunePlan

MOST_ROWS = 60
_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def prune(store: Store, keep: int, dry_run: bool) -> PrunePlan:
    """Delete the folders that nothing needs, or only list them. Raises as `tasks.upkeep.prune.prune`."""
    return prune_workspace(store, keep, dry_run, note)


def show(plan: PrunePlan) -> None:
    """Print the folders, largest first, the total by kind, and which releases can still serve."""
    largest = sorted(plan.folders, key=lambda folder: -folder.bytes)[:MOST_ROWS]
    if largest:
        rows = [(folder.kind, folder.folder, str(folder.files), size(folder.bytes)) for folder in largest]
        show_table(("kind", "folder", ">files", ">size"), rows)
    if len(plan.folders) > MOST_ROWS:
        say(f"and {len(plan.folders) - MOST_ROWS} smaller folders")
    by_kind = ", ".join(f"{kind} {size(count)}" for kind, count in plan.bytes.items())
    what = "deleted" if plan.deleted else "would be deleted"
    say(f"{plural(len(plan.folders), 'folder')}, {size(plan.total_bytes)}, {what}{f': {by_kind}' if by_kind else ''}")
    if plan.releases:
        verb = "can't serve any more" if plan.deleted else "could not serve any more"
        say(f"releases that {verb}: {', '.join(map(str, plan.releases))}; their records stay")
    if plan.kept:
        say(f"releases that are kept: {', '.join(map(str, plan.kept))}")


def size(count: int) -> str:
    """Format bytes in decimal units, as in `1.4 GB`."""
    amount, unit = float(count), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 or amount >= 99.95 else f"{amount:.1f} {_UNITS[unit]}"
