"""`millrace search` and `millrace diff`: search one release, or compare two."""

import time
from pathlib import Path
from typing import Annotated

import httpx
import typer
from pydantic import Field

from flows.cli.serving.search_worker import ANSWER_SECONDS, answered_once, searcher
from flows.cli.terminal.command import command
from flows.presentation.changes import changes_section
from flows.presentation.model import Parts, table
from flows.presentation.wording import shortened
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Changes, Hit, Question
from tasks.foundation.errors import ConfigError, ServerError
from tasks.foundation.nouns import plural
from tasks.foundation.passwords import read_token
from tasks.foundation.records import Record
from tasks.runs import releases
from tasks.runs.plan import read_plan

_SHOWN = 90  # characters of a text in the terminal


class SearchOutput(Record):
    """`millrace search`."""

    release: int
    model_version: str
    vectors: int = Field(description="number of vectors compared with the query: all of the release")
    query: str
    hits: tuple[Hit, ...]
    seconds: float = Field(description="seconds to embed the query and to compare, without the worker's start")


def search_page(output: SearchOutput) -> Parts:
    """Yield the hits."""
    rows = [[f"{hit.score:.3f}", shortened(hit.item_id, _SHOWN), shortened(hit.text, _SHOWN)] for hit in output.hits]
    yield table("", (">cosine", "item", "~text"), rows)
    yield f"the nearest of {plural(output.vectors, 'item')} in release {output.release}, in {output.seconds:.2f} s"


@command(search_page)
def search(
    store: Store,
    text: Annotated[str, typer.Argument(help="Query, as a user would write it.")],
    number: Annotated[
        int | None, typer.Option("--release", help="Number of the release; default: the current one.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=1000, help="How many items.")] = 10,
    online: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ask a running `millrace serve --online`, as in http://127.0.0.1:4280."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="With --online: file with the token of the server.")] = None,
) -> SearchOutput:
    """Find the items of a release that are nearest to a text, among all of them."""
    if not text.strip():
        raise ConfigError("the text to search for is empty")
    release = releases.current(store) if number is None else releases.read(store, number)
    if release is None:
        raise ConfigError(releases.no_current(store, "to search"))
    if online is not None:
        answer, vectors = (
            _ask_server(online, read_token(token_file), release, Question(text=text, k=k)),
            release.vectors,
        )
    else:
        with searcher(store, release) as worker:
            answer, vectors = worker.ask(text, k), worker.about.vectors
    return SearchOutput(
        release=release.number,
        model_version=release.model.version,
        vectors=vectors,
        query=text,
        hits=answer.hits,
        seconds=answer.seconds,
    )


def _ask_server(address: str, token: str | None, release: Release, question: Question) -> Answer:
    """Return the answer of a `millrace serve --online` by this release.

    Raises:
        ServerError: nobody answers there.
        ConfigError: it refuses, as when it serves another release; names both.
    """
    asked = {"query": question.text, "k": question.k, "release": release.number, "model_version": release.model.version}
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    by_proxy = not any(f"//{name}" in address for name in ("127.0.0.1", "localhost", "[::1]"))
    began = time.monotonic()
    try:
        with httpx.Client(trust_env=by_proxy, timeout=ANSWER_SECONDS) as client:
            reply = client.post(f"{address.rstrip('/')}/search", json=asked, headers=headers)
        content = reply.json()
        said = content["hits"] if reply.is_success else content["error"]["message"]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"--online: nobody answers at {address} ({error}); start it: millrace serve --online, or leave it out"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"--online: at {address} answers something else than millrace serve --online") from error
    if not reply.is_success:
        raise ConfigError(f"--online: {address}: {said}")
    hits = tuple(Hit.model_validate(hit) for hit in said)
    return Answer(hits=hits, seconds=round(time.monotonic() - began, 3))


def diff_page(changes: Changes) -> Parts:
    """Yield the comparison."""
    yield changes_section(changes)


@command(diff_page)
def diff(
    store: Store,
    before: Annotated[
        int | None, typer.Argument(help="Number of the earlier release; default: the one before.")
    ] = None,
    after: Annotated[int | None, typer.Argument(help="Number of the later one; default: the current one.")] = None,
) -> Changes:
    """Compare two releases: items, vectors, and the queries with the largest gains and losses."""
    later = releases.current(store) if after is None else releases.read(store, after)
    if later is None:
        raise ConfigError(releases.no_current(store, "to compare"))
    number = later.previous if before is None else before
    if number is None:
        raise ConfigError(f"{store.uri} has no two releases to compare; list them with: millrace releases")
    if number == later.number:
        serves = ", the current one" if after is None else ""
        raise ConfigError(f"diff: both releases are {number}{serves}; name another, of: millrace releases")
    earlier = releases.read(store, number)
    config = read_plan(store, later.run_key).config
    return Changes.model_validate_json(answered_once("search.diff", store, earlier, later, config))
