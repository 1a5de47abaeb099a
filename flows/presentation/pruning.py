"""The report of a prune, as a section: folders, bytes by kind, and the releases that keep their files."""

from flows.presentation.model import Section, table
from tasks.contracts.pruning import PrunePlan
from tasks.foundation.nouns import plural

MOST_ROWS = 60
_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def sentence(plan: PrunePlan) -> str:
    """Return the sum: `12 folders, 1.2 GB, would be deleted: models 1.0 GB, vectors 0.2 GB`."""
    by_kind = ", ".join(f"{kind} {size(count)}" for kind, count in plan.bytes.items())
    what = "deleted" if plan.deleted else "would be deleted"
    return f"{plural(len(plan.folders), 'folder')}, {size(plan.total_bytes)}, {what}{f': {by_kind}' if by_kind else ''}"


def section(plan: PrunePlan) -> Section:
    """Return the largest folders, the sum, and the releases that can and can't serve."""
    largest = sorted(plan.folders, key=lambda folder: -folder.bytes)[:MOST_ROWS]
    rows = [(folder.kind, folder.folder, str(folder.files), size(folder.bytes)) for folder in largest]
    lines = [sentence(plan)]
    if len(plan.folders) > MOST_ROWS:
        lines.append(f"the {MOST_ROWS} largest are listed")
    if plan.releases:
        verb = "can't serve any more" if plan.deleted else "could not serve any more"
        lines.append(f"releases that {verb}: {', '.join(map(str, plan.releases))}; their records stay")
    if plan.kept:
        lines.append(f"releases that are kept: {', '.join(map(str, plan.kept))}")
    listed = (table("", ("kind", "folder", ">files", ">size"), rows),) if rows else ()
    return Section("Prune", tuple(lines), tables=listed)


def size(count: int) -> str:
    """Format bytes in decimal units, as in `1.4 GB`."""
    amount, unit = float(count), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 or amount >= 99.95 else f"{amount:.1f} {_UNITS[unit]}"
