"""`python -m tasks.worker.search.diff`: compares two releases on the holdout queries of the later one.

Standard input has three lines of JSON: the earlier release, the later release, and the configuration of its run.
"""

import argparse
import sys

from configs.schema.config import Config
from infra.store.factory import open_store
from tasks.contracts.runs import Release
from tasks.worker.search.answering import Answering, answer


def main() -> None:
    """Print the changes."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.search.diff", description=__doc__)
    parser.add_argument("--workspace", required=True)
    arguments = parser.parse_args()

    def work(give: Answering) -> None:
        from tasks.worker.search.changes import compare, holdout_queries, known_pairs, shared_items
        from tasks.worker.search.consumer import ONE_OF_TWO_BYTES, about_released, compare_models, open_released, search

        store = open_store(arguments.workspace)
        before, after = (Release.model_validate_json(sys.stdin.readline()) for _ in range(2))
        config = Config.model_validate_json(sys.stdin.readline())
        opened = [open_released(store, each.ref, ONE_OF_TWO_BYTES) for each in (before, after)]
        queries = about_released(holdout_queries(store, after.rows, config), opened[1][1])
        pairs = known_pairs(store, after.rows, config, queries)
        both = shared_items(opened[0][1], opened[1][1])
        earlier, later = (
            search(index, queries, consumer.queries(queries), pairs, mask)
            for (consumer, index), mask in zip(opened, both, strict=True)
        )
        models = compare_models(earlier, later, int(both[0].sum()))
        give(compare(earlier, later, queries, (before.number, after.number), models))

    answer(work)


if __name__ == "__main__":
    main()
