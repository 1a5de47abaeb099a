"""The other actors next to a disturbed run: hourly refreshes, somebody who looks, a person with a keyboard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tests.benchmarks.chaos.draws import Deed, Turn
from tests.benchmarks.disturbed.command import Command
from tests.benchmarks.disturbed.judge import Said
from tests.benchmarks.disturbed.world import Scene
from tests.support.workspace.shop import COLUMNS

LOOKS = (("freshness",), ("status",), ("history",), ("releases",), ("history", "--ledger"), ("backfill", "list"))
HOLD_SECONDS = 8.0


def work(scene: Scene, turns: Sequence[Turn], length: float) -> list[Said]:
    """Do the turns of one actor, one after the other, in the `length` seconds of an undisturbed run."""
    start, said = time.monotonic(), list[Said]()
    for number, turn in enumerate(turns):
        time.sleep(max(0.0, turn.share * length - (time.monotonic() - start)))
        for words in _commands(scene, turn.deed, number):
            begin = scene.reader if turn.deed is Deed.look else scene.command
            said.append(finished(turn.actor, begin(*words)))
    return said


def finished(actor: str | None, command: Command) -> Said:
    """Wait for the end of a command; None is the run itself."""
    result = command.finish()
    return Said(actor, command.words, command.began, time.time(), result)


def _commands(scene: Scene, deed: Deed, number: int) -> Iterator[tuple[str, ...]]:
    here = ("--workspace", scene.store.uri, "--json")
    config = ("--config", str(scene.world.config_file))
    cut = ("--format", "jsonl", "--time-column", "searched_at", "--span", "month")
    if deed is Deed.refresh:
        feed = ("--items", str(scene.feed(number)), "--merge", "--map", "id=product_id,text=product")
        yield ("ingest", *feed, *cut, *here)
        yield ("refresh", *config, *here)
    elif deed is Deed.look:
        look = LOOKS[(number + int(time.time())) % len(LOOKS)]
        yield (*look, *(config if look[0] == "freshness" else ()), *here)
    elif deed is Deed.hold:
        yield ("hold", "--reason", "something looks wrong", *here)
        time.sleep(HOLD_SECONDS)
        yield ("hold", "--off", *here)
    elif deed is Deed.run:
        yield scene.run_words()
    elif deed is Deed.ingest:
        yield ("ingest", "--source", str(scene.more_rows()), *cut, "--map", COLUMNS, *here)
    elif deed is Deed.prune:
        yield ("prune", "--keep", "2", *here)
    else:
        yield ("rollback", *here)
