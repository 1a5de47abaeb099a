"""`python -m tasks.worker.search`: answers search queries with the model and the vectors of one release.

The first line of standard input is the release, each further line a question, all as JSON. The exported model is opened
with sentence-transformers, as a consumer does. Ends with standard input.
"""

import argparse
import sys
import time

import pyarrow as pa

from infra.store.factory import open_store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Question, Searchable
from tasks.data.rows import QUERY
from tasks.worker.search.answering import Answering, answer


def main() -> None:
    """Answer questions until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.search", description=__doc__)
    parser.add_argument("--workspace", required=True)
    arguments = parser.parse_args()

    def work(give: Answering) -> None:
        began = time.monotonic()
        release = Release.model_validate_json(sys.stdin.readline())

        from tasks.worker.search.consumer import open_released

        consumer, index = open_released(open_store(arguments.workspace), release.ref)
        give(
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
            give(Answer(hits=hits, seconds=round(time.monotonic() - began, 6)))

    answer(work)


if __name__ == "__main__":
    main()
