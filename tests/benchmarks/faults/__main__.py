"""`make faults`: the pipeline through each fault of AWS Batch, S3 and the orchestrator; its part of docs/proofs.md.

    python -m tests.benchmarks.faults [--only TEXT]

The exit code is 1 if a fault does not end as it should. With --only the page is not written.
"""

from __future__ import annotations

import argparse
import sys

from tests.benchmarks.disturbed.cloud import CloudScene, CloudWorld
from tests.benchmarks.disturbed.judge import measured, outcome_of
from tests.benchmarks.disturbed.page import put
from tests.benchmarks.disturbed.world import opened
from tests.benchmarks.faults import judge, page
from tests.benchmarks.faults.cases import CASES, UNDISTURBED, Case
from tests.support.processes.command import CommandResult


def main() -> int:
    """Run the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with this text in their name or group")
    only: str = parser.parse_args().only
    rows, well = [], True
    with opened(CloudWorld, _say) as world:
        for number, case in enumerate((UNDISTURBED, *CASES)):
            if case is UNDISTURBED or only.lower() in f"{case.group} {case.fault}".lower():
                scene = world.scene(f"case-{number}", case.stages)
                try:
                    row, problems = _try(scene, case)
                finally:
                    scene.close(keep=False)
                rows.append(row)
                well = well and not problems
                for line in (" | ".join(map(str, row)), *(f"NOT AS IT SHOULD BE: {problem}" for problem in problems)):
                    _say(line)
        print(page.tables(rows))
        if not only:
            put("make faults", page.tables(rows[1:]))  # the first is the undisturbed run
    return 0 if well else 1


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
