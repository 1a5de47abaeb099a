"""`make chaos`: runs that are disturbed on this machine and on the emulated cloud, and docs/chaos.md.

    python -m tests.benchmarks.chaos [--kills N] [--seed S] [--place local|cloud] [--only I]

The exit code is 1 if anything does not hold. The page is written if both places were tried, without --only.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from flows.chaos.campaign import hold
from flows.chaos.local import LocalPlace
from flows.cli.operation.disturbing import show
from flows.cli.terminal.console import note
from tests.benchmarks.chaos import page
from tests.benchmarks.chaos.cloud import CloudPlace

PLACES = {"local": LocalPlace, "cloud": CloudPlace}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "chaos.md"


def main() -> int:
    """Run the campaigns; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100, help="disturbed runs at each place")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", choices=PLACES, help="only there")
    parser.add_argument("--only", type=int, help="only the run of this number")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started must end too
    reports = [
        hold(place, None, options.kills, options.seed, options.only, note)
        for name, place in PLACES.items()
        if options.place in (None, name)
    ]
    for report in reports:
        show(report)
    if options.place is None and options.only is None:
        PAGE.write_text(page.whole(reports))
    return 1 if any(report.violations for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
