"""The online encoder as a web application: `/embed`, `/search`, `/v1/embeddings`, `/healthz` and `/metrics`.

An answer is wholly by one release and names it. A request for another one is refused with both names. A process that
listens beyond this machine needs a token; without one, names that only lead here (DNS rebinding) are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tasks.foundation.errors import ConfigError
from tasks.foundation.passwords import masked
from tasks.worker.online.batches import Answered, Batcher, OtherModel, QueriesAlone, Question, QueueFull
from tasks.worker.online.follower import Follower
from tasks.worker.online.requests import (
    CURRENT,
    EmbedRequest,
    OpenAiRequest,
    Refused,
    SearchRequest,
    embed_answer,
    entry_of,
    narrowed,
    open_ai_answer,
    parsed,
    search_answer,
    stamp,
)

MOST_BODY_BYTES = 4 * 2**20
BODY_SECONDS = 10.0  # for a client to send its request
_NAME = "millrace_online"
_OUR_NAMES = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.IGNORECASE)


def told(line: str) -> None:
    """Print a line for the person who runs the server."""
    print(line, file=sys.stderr, flush=True)


class Measures:
    """The numbers of `/metrics`."""

    def __init__(self) -> None:
        self.registry = all_ = CollectorRegistry()
        seconds, texts = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5), (1, 2, 4, 8, 16, 32, 64)
        self.requests = Counter(f"{_NAME}_requests", "Requests by status", ["path", "status"], registry=all_)
        self.seconds = Histogram(
            f"{_NAME}_seconds", "Seconds from request to answer", ["path"], registry=all_, buckets=seconds
        )
        self.batch = Histogram(f"{_NAME}_batch_texts", "Texts of a batch", registry=all_, buckets=texts)
        self.waiting = Gauge(f"{_NAME}_waiting_texts", "Texts that wait or are being embedded", registry=all_)
        self.release = Gauge(f"{_NAME}_release", "Number of the release that serves", registry=all_)
        self.current = Gauge(f"{_NAME}_current_release", "Number of the current release", registry=all_)
        self.swaps = Gauge(f"{_NAME}_swaps", "Swaps to another release since the start", registry=all_)
        self.models = Gauge(f"{_NAME}_models", "Models of the current release and of targets", registry=all_)
        self.failures = Gauge(f"{_NAME}_failed_opens", "Releases that could not be opened", registry=all_)

    def text(self, follower: Follower, batcher: Batcher) -> bytes:
        """Return all of them, for Prometheus."""
        self.waiting.set(batcher.texts)
        self.release.set(follower.serving.release)
        self.current.set(follower.current)
        self.swaps.set(follower.swaps)
        self.models.set(len(follower.answering))
        self.failures.set(follower.failures)
        return generate_latest(self.registry)


class Online:
    """The application of one workspace."""

    def __init__(self, follower: Follower, token: str | None = None) -> None:
        """`token`: that requests must carry; None: requests must name this machine."""
        self._follower, self._token = follower, token
        self._measures = Measures()
        self._batcher = Batcher(lambda: follower.answering, self._measures.batch.observe)
        asked = {"/embed": self._embed, "/search": self._search, "/v1/embeddings": self._open_ai}
        routes = [Route(path, self._post(path, answer), methods=["POST"]) for path, answer in asked.items()]
        routes += [Route("/healthz", self._health), Route("/metrics", self._metrics)]
        self.app = Starlette(routes=routes, lifespan=self._life)

    @contextlib.asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        self._batcher.start()
        self._follower.start(told)
        try:
            yield
        finally:
            self._follower.close()
            await self._batcher.close()

    def _post(
        self, path: str, answer: Callable[[bytes], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            began = time.monotonic()
            try:
                self._admit(request)
                response = JSONResponse(await answer(await _body(request)))
            except Refused as refused:
                response = JSONResponse(refused.body, refused.status, _headers(refused.status))
            except Exception as error:  # one bad request must not end the connection without a reason
                said = f"{type(error).__name__}: {masked(str(error))}"
                told(f"CODE: {path}: {said}")
                response = JSONResponse(Refused(500, said).body, 500)
            self._measures.requests.labels(path, str(response.status_code)).inc()
            self._measures.seconds.labels(path).observe(time.monotonic() - began)
            return response

        return endpoint

    def _admit(self, request: Request) -> None:
        """Raise Refused unless the request may be answered."""
        if self._token is None:
            if not _OUR_NAMES.fullmatch(request.headers.get("host", "")):
                raise Refused(421, "without a token this server answers for 127.0.0.1 and localhost alone")
        else:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                raise Refused(401, "the header `Authorization: Bearer TOKEN` is missing or has another token")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the body is JSON, and says so: Content-Type: application/json")

    async def _embed(self, body: bytes) -> dict[str, Any]:
        given = parsed(EmbedRequest, body)
        entries, side = (given.queries, "query") if given.queries is not None else (given.items or (), "item")
        question = Question([entry_of(each) for each in entries], side, given.release, given.model_version)
        answered = await self._ask(question)
        return embed_answer(answered.by, narrowed(answered.by, answered.vectors, given.width))

    async def _search(self, body: bytes) -> dict[str, Any]:
        given = parsed(SearchRequest, body)
        question = Question([entry_of(given.query)], "query", given.release, given.model_version, given.k)
        answered = await self._ask(question)
        if answered.hits is None:
            by = answered.by
            raise Refused(
                501, f"release {by.release} has too many vectors to search in this process; search a target of "
                "publish.targets with the vector of /embed", **stamp(by),
            )  # fmt: skip
        return search_answer(answered.by, answered.hits[0])

    async def _open_ai(self, body: bytes) -> dict[str, Any]:
        given = parsed(OpenAiRequest, body)
        texts = (given.input,) if isinstance(given.input, str) else given.input
        answered = await self._ask(
            Question(texts, "query", model_version=None if given.model == CURRENT else given.model)
        )
        vectors = narrowed(answered.by, answered.vectors, given.dimensions)
        return open_ai_answer(answered.by, vectors, given.encoding_format)

    async def _ask(self, question: Question) -> Answered:
        try:
            try:
                return await self._batcher.ask(question)
            except OtherModel:  # it may be current since a moment ago
                await self._follower.look_now()
                return await self._batcher.ask(question)
        except QueueFull:
            raise Refused(429, "too many texts wait already; try again in a second") from None
        except OtherModel as other:
            named = {name: value for name in ("release", "model_version") if (value := getattr(question, name))}
            asked = " and ".join(f"{name} {value}" for name, value in named.items())
            serving = stamp(other.serving)
            raise Refused(409, f"{other}, and the request is for {asked}", serving=serving, asked=named) from None
        except QueriesAlone as error:
            raise Refused(409, str(error), **stamp(error.by)) from None
        except ConfigError as error:
            raise Refused(400, str(error)) from error

    async def _health(self, _: Request) -> Response:
        now, follower = self._follower.serving, self._follower
        return JSONResponse(
            {
                "status": "ok" if follower.trouble is None else "behind",
                **stamp(now),
                "current": follower.current,
                "encoder": now.encoder.kind,
                "width": now.encoder.width,
                "vectors": len(now.vectors) if now.vectors is not None else None,
                "also": [stamp(each) for each in follower.answering[1:]],
                "trouble": follower.trouble,
            }
        )

    async def _metrics(self, _: Request) -> Response:
        text = self._measures.text(self._follower, self._batcher)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _body(request: Request) -> bytes:
    """Return the body. Raises Refused: it is too large, or takes too long to come."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY_BYTES:
                    raise Refused(413, f"the body has more than {MOST_BODY_BYTES >> 20} MiB; send fewer texts at once")
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_SECONDS:.0f} s") from None
    return bytes(body)


def _headers(status: int) -> dict[str, str]:
    return {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(status, {})
