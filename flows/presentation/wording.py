"""Format durations, moments, numbers, money and states for people."""

import datetime as dt
import math
import re
import shlex
from collections.abc import Mapping

import tasks.foundation.clock
from tasks.contracts.evaluation import Verdict
from tasks.contracts.kinds import run_folder

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # terminal controls
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks
    "\u2028\u2029\ud800-\udfff]"  # line separators, and surrogates
)

# The recalls of a release that differ by nature. Each has its one phrase, in every command and page.
ON_HOLDOUT = "on the holdout"  # as the gates judge it: the holdout of its run, before the release
AMONG_ALL = "among all items of a release"  # the exported model and the released vectors, searched
AMONG_SHARED = "among the items that both releases hold"  # likewise, so that only the models differ
OF_INDEX = "of the index against exact search"  # a search service's, which says nothing of the model
WITHOUT_INDEX = "of the service's exact search, without an index"
BY_NARROW = "of the holdout queries by narrow vectors"  # a target with a form or a width, as it answers consumers

# State of a run -> the sign before it and the class of its colour.
SIGNS: Mapping[str, tuple[str, str]] = {
    "Released": ("✓", "good"),
    "Rejected": ("✕", "refused"),
    "Held": ("‖", "refused"),
    "Failed": ("!", "bad"),
    "Lost": ("!", "bad"),
    "Cancelled": ("■", "quiet"),
    "Running": ("▶", "going"),
    "Unfinished": ("○", "quiet"),
    "Corrected": ("!", "refused"),
}


def duration(seconds: float | None) -> str:
    """Format seconds with two units at most, as in `4.1 s`, `2 h 31 min` or `14 d`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 0:
        return f"{MINUS}{duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    days, hours = divmod(round(seconds / 3600), 24)
    if days >= 2:
        return f"{days} d {hours} h" if hours else f"{days} d"
    return tasks.foundation.clock.duration(seconds)


def seconds(value: float) -> str:
    """Format a part of an attempt's time, for a column of such parts."""
    return f"{value:,.1f}" if value else NONE


def moment(iso: str | None) -> str:
    """Format an ISO 8601 time in UTC to the minute, as in `2026-11-13 06:12`."""
    return dt.datetime.fromisoformat(iso).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M") if iso else NONE


def dollars(value: float | None) -> str:
    """Format dollars with cents; below ten cents with two significant digits. An unknown cost is never $0.00."""
    if value is None:
        return NONE
    if value <= 0 or value >= 0.1:
        return f"${value:,.2f}"
    return f"${value:.{1 - math.floor(math.log10(value))}f}"


def number(value: float | None) -> str:
    """Format a metric with four decimals."""
    return NONE if value is None else f"{value:.4f}"


def difference(value: float | None, other: float | None) -> str:
    """Format a difference with its sign."""
    if value is None or other is None:
        return NONE
    return f"{value - other:+.4f}".replace("-", MINUS)


def share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}".replace("%", " %")


def count(value: float) -> str:
    return f"{value:,.0f}"


def gate_name(verdict: Verdict) -> str:
    """Name a gate by metric, part of the rows and baseline, as in `recall@10 vs champion`; two gates never share it."""
    return f"{verdict.judges} vs {verdict.against}" if verdict.against else verdict.judges


def versions(newest: int | None, trained: int | None) -> str:
    """Format the newest version of a span and another that was trained, as in `v2, v1 trained`; empty: none arrived."""
    other = f", v{trained} trained" if trained is not None and trained != newest else ""
    return f"v{newest}{other}" if newest is not None else ""


def visible(words: str) -> str:
    """Escape control and bidirectional characters, as in `\\x1b`, so that foreign text can't steer the terminal.

    Tabs and ends of lines stay.
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], words)


def shortened(words: str, letters: int) -> str:
    """Return words as one line of at most `letters` characters, cut between words if it can be."""
    line = " ".join(words.split())
    if len(line) <= letters:
        return line
    kept = line[: letters - 1]
    space = kept.rfind(" ") if line[letters - 1] != " " else len(kept)
    return f"{kept[:space] if space > letters // 2 else kept}…"  # never inside a number, unless all is one word


def sentence(words: str) -> str:
    """Add a capital letter and a full stop."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def uri(workspace: str, key: str) -> str:
    """Return the address of a key in the workspace."""
    return f"{workspace}/{key}" if key else workspace


def with_settings(command: str, workspace: str, run_key: str) -> str:
    """Return a command over several lines; add `--config` if the run's file exists on this machine."""
    lines = [command, f"--workspace {shlex.quote(workspace)}"]
    if "://" not in workspace:
        lines.append(f"--config {shlex.quote(f'{workspace}/{run_folder(run_key)}/config.yaml')}")
    return " \\\n  ".join(lines)


def now() -> dt.datetime:
    """Return the present time."""
    return dt.datetime.now(dt.UTC)
