"""`python -m tasks.worker.search`: answers questions on standard input from the model and the vectors of one release.

It opens the exported model with sentence-transformers, as a consumer does. Ends when standard input does.
"""

import argparse
import os
import sys
import time

import pyarrow as pa

from infra.store.factory import open_store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Question, Searchable
from tasks.data.rows import QUERY
from tasks.foundation.errors import POLICIES, classify
from tasks.foundation.garbage import collect_rarely
from tasks.foundation.records import Record
from tasks.worker.process.libraries import QUIET
from tasks.worker.process.parent_death import die_with_parent


def main() -> int:
    """Answer until the input ends; return the exit code of the process."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.search", description=__doc__)
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--release", required=True, help="the release as JSON")
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    collect_rarely()
    die_with_parent()
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints is no answer

    def answer(record: Record) -> None:
        print(record.model_dump_json(), file=answers, flush=True)

    try:
        began = time.monotonic()
        release = Release.model_validate_json(arguments.release)
        store = open_store(arguments.workspace)

        from tasks.worker.search.measure import open_released

        consumer, index = open_released(store, release.ref)
        answer(
            Searchable(
                release=release.number,
                model_version=release.model.version,
                vectors=index.vectors,
                seconds=time.monotonic() - began,
            )
        )
        for line in sys.stdin:
            question, began = Question.model_validate_json(line), time.monotonic()
            query = consumer.queries(pa.table({QUERY: [question.text]}))
            hits = index.nearest(query[0], question.k)
            answer(Answer(hits=hits, seconds=round(time.monotonic() - began, 6)))
    except Exception as error:
        print(f"{error}" or type(error).__name__, file=sys.stderr, flush=True)
        return POLICIES[classify(error)].exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries must not delay the end
