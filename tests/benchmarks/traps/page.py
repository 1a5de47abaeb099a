"""docs/traps.md: what became of each month, from outcomes.csv beside this file. `make docs` writes it too."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tasks.foundation.records import Record
from tests.benchmarks.disturbed.page import table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "traps.md"
OUTCOMES = Path(__file__).with_name("outcomes.csv")
USUAL = "as usual"
GATES = "gates"

_SHOWN = 2  # months of a check
_HEAD = """# Wrong months, and honest ones

Each is a month of the demo's shop, ingested after four good ones (a *first month* into an empty workspace) and run with
`configs/demo.yaml`: real workers, the whole pipeline. A wrong month is caught by ingest, by a check of validate (DATA),
or by gates, which refuse its model; the champion stays. `make traps` makes this page and
[outcomes.csv](../tests/benchmarks/traps/outcomes.csv), which has for each month every check and gate that failed and
does not fail in a month as usual, and recall@10: the share of 400 clean searches of that month whose product is among
the first ten of all released vectors afterwards. `python -m tests.benchmarks.traps --only NAME` runs one month again.
"""

_UNSEEN = """
## Wrong months that no number shows

Nobody who has only the rows can tell these from honest months:

- **A price list that is wrong but plausible**, as 10 % too high: it looks like a sale. `price of known items as before`
  warns of both alike.
- **Features that are wrong from the first span on**, or ids that are exchanged there, each for the same other one.
  `known items as before` stops the next export, which has the right ones.
- **Old rows in place of new ones.** Only the span directly before is compared (`rows new`), since items and queries of
  a month long ago may come back.
- **Labels shuffled in the first span.** The page says that the head learns nothing.
- **A few percent of anything**, or a slice with fewer than `evaluate.min_slice_rows` rows in the holdout.
- **Less of everything, evenly**, as in a quiet month; `rows as many as before` warns from 60 % on.
- **An error in holdout and training alike that changes no distribution**, as clicks that all belong to a similar item.
  The champion loses some points then, which is a warning from 10 % on.
"""


class Failed(Record):
    """A check or a gate that failed."""

    name: str
    severity: str
    sentence: str


class Outcome(Record):
    """What came of a month."""

    state: str
    failed: tuple[Failed, ...]
    vectors: int
    recall: float | None  # None: nothing is released


class Row(NamedTuple):
    """A month in outcomes.csv; names are separated by `; `."""

    month: str
    kind: str  # wrong or honest
    state: str
    caught_by: str  # critical checks and gates
    warned: str  # other ones
    recall: str  # empty: nothing is released

    @property
    def first_catch(self) -> str:
        """The first check that caught the month, or `gates`."""
        name = self.caught_by.partition("; ")[0]
        return GATES if name.startswith("gate ") else f"`{name}`"

    @property
    def holds(self) -> bool:
        """True if a wrong month was not released in silence, or an honest one not refused."""
        if self.kind == "wrong":
            return self.state != "Released" or bool(self.caught_by or self.warned)
        return self.state == "Released"


def rows_of(found: Mapping[str, Outcome], wrong: Iterable[str]) -> list[Row]:
    """Return the months, without what fails in a month as usual."""
    usual, wrong = {each.name for each in found[USUAL].failed}, set(wrong)
    rows = []
    for month, outcome in found.items():
        new = [each for each in outcome.failed if each.name not in usual]
        critical = "; ".join(each.name for each in new if each.severity == "critical")
        others = "; ".join(each.name for each in new if each.severity != "critical")
        recall = "" if outcome.recall is None else f"{outcome.recall:.3f}"
        rows.append(Row(month, "wrong" if month in wrong else "honest", outcome.state, critical, others, recall))
    return sorted(rows, key=lambda row: row.kind, reverse=True)


def write(rows: Iterable[Row]) -> None:
    """Write outcomes.csv, wrong months first."""
    with OUTCOMES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def read() -> list[Row]:
    """Return the months of outcomes.csv."""
    with OUTCOMES.open(encoding="utf-8", newline="") as file:
        return [Row(*row) for row in list(csv.reader(file))[1:]]


def page() -> str:
    """Return the page of the months in outcomes.csv."""
    rows = read()
    wrong, honest = ([row for row in rows if row.kind == kind] for kind in ("wrong", "honest"))
    caught: dict[str, list[str]] = {}
    for row in wrong:
        if row.state != "Released":
            caught.setdefault(row.first_catch, []).append(row.month)
    warned = [_with_warnings(row) for row in wrong if row.state == "Released"]
    passed = [row for row in honest if row.state == "Released"]
    recalls = [row.recall for row in passed if row.recall]
    silent = [row.month for row in wrong if not row.holds]
    refused = [row.month for row in honest if not row.holds]
    catches = [(name, len(months), _some(months)) for name, months in caught.items()]
    return "\n".join(
        [
            _HEAD,
            f"## Wrong: {len(wrong)}\n\n{sum(map(len, caught.values()))} are caught:\n\n"
            f"{table(('caught first by', '>months', 'as'), catches)}\n",
            f"{len(warned)} are released, with a warning and recall@10: {'; '.join(warned)}.\n",
            f"## Honest: {len(honest)}\n\n{len(passed)} are released, with a recall@10 of {min(recalls)} to "
            f"{max(recalls)}: {'; '.join(row.month for row in passed)}.",
            _UNSEEN,
            f"Wrong months released in silence: {len(silent)}. Honest months refused: {len(refused)}.\n",
        ]
    )


def _some(months: list[str]) -> str:
    """Return the first months; the cases of an empty workspace come last."""
    return "; ".join(sorted(months, key=lambda month: month.startswith("the first month"))[:_SHOWN])


def _with_warnings(row: Row) -> str:
    return f"{row.month} ({row.warned.replace('; ', ', ')}; {row.recall})"
