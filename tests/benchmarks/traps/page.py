"""docs/traps.md: what became of each month."""

from collections.abc import Mapping
from pathlib import Path

from tasks.foundation.records import Record
from tests.benchmarks.traps.months import MONTHS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "traps.md"
USUAL = "as usual"

_HEAD = """# Wrong months, and honest ones

Each line is a month of the demo's shop, ingested after four good ones and run with `configs/demo.yaml`: real workers,
the whole pipeline. *Stopped*: validate ended the run with DATA. *Rejected*: a gate refused the model, and the champion
stays. Named are the checks and gates that failed and that do not fail in a month as usual; the ones that stopped the
month are **bold**. The last column is the share of 400 clean searches of that month whose product is among the first
ten of all released vectors afterwards. `make traps` makes this page, and
`python -m tests.benchmarks.traps --only NAME` runs one month again.

A *first month* is ingested into an empty workspace: no span is before it, so only what is wrong in any shop is found.
"""

_UNSEEN = """
## Wrong months that no number shows

Some months can be told from honest ones by nobody who has only the rows:

- **A price list that is wrong but plausible.** If each price is 10 % too high, or that of last year, the prices keep
  their order and their size, as in a sale or with a new price list. `price of known items as before` warns of all three
  alike. Prices of other items are found (`price related to before`), and so is another power of ten (`unit of price`).
- **Features that are wrong from the first span on.** Prices in cents are right if they always were.
- **Ids that are exchanged in the first span**, each for the same other one. An id is only a name, so nothing is lost
  until the next export has the right ones: then `known items as before` stops that one.
- **Old rows in place of new ones.** Items and queries of a month long ago may have come back, as in a season. Only the
  span directly before is compared (`rows new`).
- **Labels shuffled in the first span.** The head learns nothing and its page says so, but no champion shows that there
  was something to learn. A slice with fewer than `evaluate.min_slice_rows` rows in the holdout is not judged either.
- **A few percent of anything.** The limits allow it, and a model hardly changes: the gates measure that.
- **Less of everything, evenly.** Rows that are missing at random look like a quiet month; `rows as many as before`
  warns from 60 % on.
- **What is wrong in the holdout and in the training alike, and changes no distribution**, as clicks that all
  belong to a similar item of the same kind. The champion loses some points then, which is a warning from 10 % on.
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


def page_of(found: Mapping[str, Outcome]) -> tuple[str, bool]:
    """Return the page, and whether no wrong month was released in silence and no honest one refused."""
    usual = {each.name for each in found[USUAL].failed}
    silent = [n for n, o in found.items() if MONTHS[n].wrong and o.state == "Released" and not _new(o, usual)]
    refused = [n for n, o in found.items() if not MONTHS[n].wrong and o.state != "Released"]
    parts = [_HEAD]
    for title, wrong in (("Wrong", True), ("Honest", False)):
        some = {name: outcome for name, outcome in found.items() if MONTHS[name].wrong is wrong}
        parts.append(
            f"\n## {title}: {len(some)}\n\n| month | state | failed, and not as usual | recall@10 |\n|---|---|---|---:|"
        )
        parts += [
            f"| {n} | {o.state} | {_named(o, usual)} | {'-' if o.recall is None else f'{o.recall:.3f}'} |"
            for n, o in some.items()
        ]
    parts.append(_UNSEEN)
    parts.append(f"Wrong months released in silence: {len(silent)}. Honest months refused: {len(refused)}.\n")
    return "\n".join(parts), not silent and not refused


def _new(outcome: Outcome, usual: set[str]) -> list[Failed]:
    return [each for each in outcome.failed if each.name not in usual]


def _named(outcome: Outcome, usual: set[str]) -> str:
    names = [f"**{e.name}**" if e.severity == "critical" else e.name for e in _new(outcome, usual)]
    return ", ".join(names) or "-"
