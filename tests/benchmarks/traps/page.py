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
ten of all released vectors afterwards. `make traps` makes this page.
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
    recall: float


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
        parts += [f"| {n} | {o.state} | {_named(o, usual)} | {o.recall:.3f} |" for n, o in some.items()]
    parts.append(f"\nWrong months released in silence: {len(silent)}. Honest months refused: {len(refused)}.\n")
    return "\n".join(parts), not silent and not refused


def _new(outcome: Outcome, usual: set[str]) -> list[Failed]:
    return [each for each in outcome.failed if each.name not in usual]


def _named(outcome: Outcome, usual: set[str]) -> str:
    names = [f"**{e.name}**" if e.severity == "critical" else e.name for e in _new(outcome, usual)]
    return ", ".join(names) or "-"
