"""`make faults`: the pipeline through each fault of AWS Batch, S3 and the orchestrator; its part of docs/proofs.md.

    python -m tests.benchmarks.faults [--only TEXT]

The exit code is 1 if a fault does not end as it should. With --only the page is not written. Faults that ended as they
should are in workspace/faults, and are not run again by the same code: a run that was ended goes on there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

from tasks.foundation.process import code_version
from tests.benchmarks.disturbed.cloud import CloudScene, CloudWorld
from tests.benchmarks.disturbed.judge import measured, outcome_of
from tests.benchmarks.disturbed.page import put
from tests.benchmarks.disturbed.world import opened
from tests.benchmarks.faults import judge, page
from tests.benchmarks.faults.cases import CASES, UNDISTURBED, Case
from tests.support.processes.command import CommandResult

DONE = Path("workspace/faults")


def main() -> int:
    """Run the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this text in their name or group")
    only: str = parser.parse_args().only
    rows, well = [], True
    with opened(CloudWorld, _say) as world:
        for number, case in enumerate((UNDISTURBED, *CASES)):
            if not only and case is not UNDISTURBED and (known := _known(case)) is not None:
                rows.append(known)
            elif case is UNDISTURBED or only.lower() in f"{case.group} {case.fault}".lower():
                scene = world.scene(f"case-{number}", case.stages)
                try:
                    row, problems = _try(scene, case)
                finally:
                    scene.close(keep=False)
                rows.append(row)
                well = well and not problems
                if not problems:
                    _kept(case).write_text(json.dumps([code_version(), *row]), encoding="utf-8")
                for line in (" | ".join(map(str, row)), *(f"NOT AS IT SHOULD BE: {problem}" for problem in problems)):
                    _say(line)
        print(page.tables(rows))
        if not only:
            page.write(rows[1:])  # the first is the undisturbed run
            put("make faults", page.tables(page.read()))
    return 0 if well else 1


def _kept(case: Case) -> Path:
    DONE.mkdir(parents=True, exist_ok=True)
    return DONE / f"{hashlib.sha256(f'{case.group} {case.fault}'.encode()).hexdigest()[:16]}.json"


def _known(case: Case) -> page.Row | None:
    """The row of a fault that ended as it should, by the same code; None: it has to be run."""
    try:
        code, *row = json.loads(_kept(case).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return page.Row(*row) if code == code_version() else None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _try(scene: CloudScene, case: Case) -> tuple[page.Row, list[str]]:
    """One row of the table, and its problems."""
    problems = []
    try:
        result = case.act(scene)
    except (AssertionError, TimeoutError) as error:
        result = CommandResult(1, "", str(error))
        problems.append(f"{type(error).__name__}: {error}")
        scene.end()
    took, world = scene.seconds, scene.world
    scene.s3.forget()
    attempts = scene.attempts()
    problems += judge.problems(scene, case, result, attempts)
    if case is UNDISTURBED and not problems:  # with a server that runs already, as the faults have
        own, content = measured(attempts, 0.0, 0.0, {}).stage_seconds, world.undisturbed.content
        seconds = world.undisturbed.stage_seconds | own
        world.undisturbed = type(world.undisturbed)(seconds, took - sum(own.values()), 0.0, content)
    lost = max(0, round(took - world.undisturbed.seconds(judge.done(attempts))))
    return page.Row(case.group, case.fault, outcome_of(result), judge.attempts_in_words(attempts), lost), problems


if __name__ == "__main__":
    sys.exit(main())
