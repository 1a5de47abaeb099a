"""`make faults`: the pipeline through every fault that AWS Batch, S3 and the orchestrator can have, and docs/faults.md.

    python -m tests.benchmarks.faults [--only TEXT]

The exit code is 1 if a fault does not end as it should. With --only the page is not written.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.faults import judge, page
from tests.benchmarks.faults.cases import CASES, UNDISTURBED, Case
from tests.benchmarks.faults.judge import Undisturbed
from tests.benchmarks.faults.world import FROM_TRAINING_ON, Scene, World
from tests.support.workspace.shop import STAGES, CommandResult

PAGE = Path(__file__).resolve().parents[3] / "docs" / "faults.md"


def main() -> int:
    """Run the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this text in their name or group")
    only: str = parser.parse_args().only
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # what was started must end too
    rows, well = [], True
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as folder:
        world = World(Path(folder))
        try:
            undisturbed = _undisturbed(world)
            for case in (UNDISTURBED, *CASES):
                if case is UNDISTURBED or only.lower() in f"{case.group} {case.fault}".lower():
                    row, problems = _try(world.scene(case.stages), case, undisturbed)
                    rows.append(row)
                    well = well and not problems
                    for line in (page.line(row), *(f"NOT AS IT SHOULD BE: {problem}" for problem in problems)):
                        print(line, file=sys.stderr, flush=True)
        finally:
            world.stop()
    print(page.tables(rows))
    if not only:
        PAGE.write_text(page.whole(rows, undisturbed.seconds(FROM_TRAINING_ON)))
    return 0 if well else 1


def _undisturbed(world: World) -> Undisturbed:
    """Fill the first workspace, and begin to measure."""
    scene = Scene(world, world.base, STAGES)
    result = scene.run()
    if result.code:
        raise SystemExit(f"the run without a fault ended with {result.code}: {result.err}")
    return Undisturbed(0.0, judge.stage_seconds(scene.attempts()), scene.weights())


def _try(scene: Scene, case: Case, undisturbed: Undisturbed) -> tuple[page.Row, list[str]]:
    """One row of the table, and its problems."""
    problems = []
    try:
        result = case.act(scene)
    except (AssertionError, TimeoutError) as error:
        result = CommandResult(-1, "", str(error))
        problems.append(f"{type(error).__name__}: {error}")
        scene.abandon()
    took = scene.seconds
    scene.s3.forget()
    attempts = scene.attempts()
    problems += judge.problems(scene, case, result, attempts, undisturbed.weights)
    if case is UNDISTURBED:
        undisturbed.take(attempts, took)
    lost = max(0, round(took - undisturbed.seconds(judge.done(attempts))))
    return page.Row(case.group, case.fault, judge.outcome_of(result), judge.attempts_in_words(attempts), lost), problems


if __name__ == "__main__":
    sys.exit(main())
