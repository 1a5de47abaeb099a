"""`make nightly PART=k`: one part of the slow proofs; docs/nightly.md shows when each last ran.

    python -m tests.nightly [--part K | --part next] [--minutes 35] [--only NAME ...] [--list]

The units that were not run for the longest time come first. At the time limit the unit that runs is ended, and those
left are named: no failure, and the next run of the part begins with them. The exit code is 1 if a unit failed that is
in ran.json: one that never ran is named, and holds nobody up.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.nightly import ran
from tests.nightly.units import PART_MINUTES, ROOT, Unit, units

GRACE_SECONDS = 30
CUT = (124, 128 + 9)  # exit codes of `timeout`: the command ended at SIGTERM, or had to be killed


def main() -> int:
    """Run a part; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="next", help="its number; next: by the count of commits")
    parser.add_argument("--minutes", type=float, default=PART_MINUTES, help="time limit")
    parser.add_argument("--only", nargs="+", choices=[unit.name for unit in units()], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the parts and their units")
    options = parser.parse_args()
    known = ran.read()
    parts = ran.dealt(known)
    if options.list:
        for number, part in enumerate(parts):
            print(f"part {number}: {', '.join(unit.name for unit in part)}")
        return 0
    count = int(_git("rev-list", "--count", "HEAD"))
    number = count % len(parts) if options.part == "next" else int(options.part)
    chosen = [unit for unit in units() if unit.name in options.only] if options.only else parts[number]
    turn = count // len(parts) % len(chosen)  # of units that were never run, or at the same time
    order = sorted(
        [*chosen[turn:], *chosen[:turn]], key=lambda unit: known[unit.name].date if unit.name in known else ""
    )
    print(f"part {number} of {len(parts)}: {', '.join(unit.name for unit in order)}", flush=True)
    results = run(order, options.minutes)
    ran.write(known | results)
    ran.PAGE.write_text(ran.page(), encoding="utf-8")
    for unit in order:
        said = results.get(unit.name)
        print(f"{unit.name}: {f'{said.result} after {said.minutes:.1f} min; {said.said}' if said else 'not begun'}")
    return 1 if any(each.result == "failed" and known.get(name) for name, each in results.items()) else 0


def run(order: Sequence[Unit], minutes: float) -> dict[str, ran.Ran]:
    """Run units one after the other until the time limit; return the results of those begun."""
    deadline = time.monotonic() + 60 * minutes
    results: dict[str, ran.Ran] = {}
    for unit in order:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        began = time.monotonic()
        result, said = _run(unit, left)
        results[unit.name] = ran.Ran(
            commit=_git("rev-parse", "--short=10", "HEAD"),
            date=f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
            minutes=round((time.monotonic() - began) / 60, 1),
            result=result,
            said=said[:200],
        )
    return results


def _run(unit: Unit, seconds: float) -> tuple[str, str]:
    """Return the result and the last line that the unit printed; at the limit, end it and all that it started."""
    print(f"--- {unit.name}", flush=True)
    limited = ["timeout", f"--kill-after={GRACE_SECONDS}", str(seconds), *unit.command]
    said = ""
    with subprocess.Popen(
        limited,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        encoding="utf-8",
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said = line.strip() or said
    return "cut" if process.returncode in CUT else "failed" if process.returncode else "passed", said


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
