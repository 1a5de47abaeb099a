"""In place of `python -m tasks.worker.search`: the same lines, arguments and exit codes, without a model.

Each hit's text is the query and the worker's process id. The items are those numbered from the release's number on, so
that two releases share some. The query `die` ends the process. Release 9 has lost its files, release 8 takes seconds to
load.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Hit, Question, Searchable
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker.process.sigterm import die_with_parent

LOST, SLOW = 9, 8
SLOW_SECONDS = 3.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", required=True)
    parser.parse_args()
    release = Release.model_validate_json(sys.stdin.readline())
    die_with_parent()
    if release.number == LOST:
        print(f"{release.model_prefix} has no MANIFEST.json", file=sys.stderr)
        return POLICIES[FailureClass.STORE].exit_code
    if release.number == SLOW:
        time.sleep(SLOW_SECONDS)
    about = Searchable(release=release.number, model_version=release.model.version, vectors=release.vectors, seconds=0)
    print(about.model_dump_json(), flush=True)
    for line in sys.stdin:
        question = Question.model_validate_json(line)
        if question.text == "die":
            print("the machine went away", file=sys.stderr)
            return POLICIES[FailureClass.HOST].exit_code
        hits = tuple(
            Hit(score=1 - place / 10, item_id=f"i{release.number + place}", text=f"{question.text} {os.getpid()}")
            for place in range(question.k)
        )
        print(Answer(hits=hits, seconds=0.012).model_dump_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
