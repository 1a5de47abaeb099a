"""`python -m tests.benchmarks.fire.clients SPEC.json`: eight clients of an online encoder and of three targets.

Two ask the server alone; two for each target do what docs/publish.md tells its consumers to do. They begin with the
process and end when its input ends; then it prints what each saw.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import TypeAdapter

from configs.schema.stages import AnyTarget
from infra.store.directory import DirectoryStore
from tests.support.processes.online_clients import TEXTS, Client, Seen, Truth, direct, watch
from tests.support.processes.online_consumer import consumer

OF_EACH = 2  # clients of the server alone, and of each target
HITS = 10
EVERY_SECONDS = 0.1  # between the beginnings of a client's rounds: the load stays below what two cores can do


def main(spec: Path) -> None:
    """Ask until the input ends."""
    given = json.loads(spec.read_text(encoding="utf-8"))
    truth = Truth(DirectoryStore(Path(given["workspace"])), *given["releases"])
    targets: list[AnyTarget] = [TypeAdapter(AnyTarget).validate_python(each) for each in given["targets"]]
    ended, clients = threading.Event(), list[Client]()
    for target in (None, *targets):
        for _ in range(OF_EACH):
            seen = Seen()
            clients.append(Client(_rounds(target, given["url"], truth, seen), seen, ended, EVERY_SECONDS))
    for client in clients:
        client.start()
    sys.stdin.read()
    ended.set()
    for client in clients:
        client.join()
    print(json.dumps([dataclasses.asdict(client.seen) for client in clients], default=sorted))


def _rounds(target: AnyTarget | None, url: str, truth: Truth, seen: Seen) -> AbstractContextManager[Callable[[], None]]:
    return direct(url, truth, seen) if target is None else _consuming(target, url, truth, seen)


@contextlib.contextmanager
def _consuming(target: AnyTarget, url: str, truth: Truth, seen: Seen) -> Iterator[Callable[[], None]]:
    """Yield the round of a target's consumer: a search with the vector of the model that the target holds."""
    names = consumer(target, url)
    with contextlib.ExitStack() as opened:
        for each in {"connection", "client", "encoder"} & set(names):
            opened.enter_context(contextlib.closing(names[each]))
        watch(names["encoder"], truth, seen)
        texts = itertools.cycle(TEXTS)

        def ask() -> None:
            text = next(texts)
            hits = names["search"](text, HITS) or names["search"](text, HITS)  # as the page says of a swap in between
            if len(hits) != HITS:
                raise LookupError(f"{target.name}: {len(hits)} hits")
            if wrong := [hit for hit in hits if seen.vectors_by not in str(hit)]:
                seen.mixed.append(f"{target.name}: asked with a vector for {seen.vectors_by}: {wrong[0]!s:.200}")

        yield ask


if __name__ == "__main__":
    main(Path(sys.argv[1]))
