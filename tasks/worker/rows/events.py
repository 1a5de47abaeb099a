"""The check of a log's events, and the way out if validate.events does not name them all."""

from collections import Counter

from tasks.contracts.outcomes import Check
from tasks.worker.rows.counts import WindowCounts

UNKNOWN_EVENT = "unknown event"
_NAMED = 5  # events in a sentence


def known_events(counts: WindowCounts) -> Check:
    """Return the check that the table has the events of all rows."""
    unknown, total = counts.reasons[UNKNOWN_EVENT], counts.rows_in
    sentence = "validate.events names the events of all rows."
    if unknown:
        sentence = (
            f"{unknown} of {total} rows ({unknown / total:.2%}) have an event that validate.events does not name: "
            f"{_names(counts.unknown_events)}; they are set apart."
        )
    return Check(
        name="events known", passed=not unknown, severity="warning", observed=float(unknown), sentence=sentence
    )


def way_out(counts: WindowCounts) -> str:
    """Return the end of a sentence about too many bad rows, if some have unknown events."""
    unknown = counts.reasons[UNKNOWN_EVENT]
    if not unknown:
        return ""
    return (
        f" {unknown} of them have an event that validate.events does not name, {_names(counts.unknown_events)}: name "
        "it in validate.events, or leave such rows out of the log."
    )


def _names(events: Counter[str]) -> str:
    return ", ".join(f"{name} ({rows})" for name, rows in events.most_common(_NAMED))
