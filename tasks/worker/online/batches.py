"""Answers requests together: a few milliseconds' requests are embedded in one batch, by one release."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from tasks.contracts.search import Hit
from tasks.worker.model.features import Side
from tasks.worker.online.exported import Entry
from tasks.worker.online.opened import Opened

GATHER_SECONDS = 0.003  # after the first request of a batch; a query takes a few milliseconds itself
MOST_TEXTS = 64  # in a batch; a request may have more, and is a batch of its own then
MOST_WAITING = 512  # texts of all requests that wait, or a single request


class QueueFull(Exception):
    """Too many texts wait."""


class OtherModel(Exception):
    """The request is for another release or model than the one that answers."""

    def __init__(self, serving: Opened) -> None:
        super().__init__(f"release {serving.release} with model {serving.model_version} serves")
        self.serving = serving


class QueriesAlone(Exception):
    """The request has items, and the model that answers was trained on queries alone."""

    def __init__(self, by: Opened) -> None:
        super().__init__(
            f"model {by.model_version} of release {by.release} embeds queries alone; the items are of {by.vectors_by}"
        )
        self.by = by


@dataclass(frozen=True)
class Question:
    """Entries to embed; with `k`, also their nearest items. `release` and `model_version`: None is any.

    A query for the model of some vectors is answered by the model that was trained to find them, if that one serves.
    """

    entries: Sequence[Entry]
    side: Side
    release: int | None = None
    model_version: str | None = None
    k: int | None = None


@dataclass(frozen=True)
class Answered:
    """`vectors` float32 (entries, width) and, of a search, the hits of each entry, all by the release `by`.

    `hits` is None if the vectors of the release are not in memory.
    """

    by: Opened
    vectors: np.ndarray
    hits: list[tuple[Hit, ...]] | None = None


@dataclass
class _Waiting:
    question: Question
    answer: asyncio.Future[Answered] = field(repr=False)


class Batcher:
    """One thread computes; the event loop gathers the next batch meanwhile."""

    def __init__(
        self, answering: Callable[[], Sequence[Opened]], batched: Callable[[int], None] = lambda texts: None
    ) -> None:
        """`answering` returns the releases for the next batch, as in `answer_all`; `batched` gets its texts' number."""
        self._answering, self._batched = answering, batched
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embed")
        self._task: asyncio.Task[None] | None = None
        self.texts = 0  # waiting or being embedded

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End after the batch that is being computed; the server has answered all requests by then."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def ask(self, question: Question) -> Answered:
        """Return the answer of the release that serves when the question's turn comes.

        Raises:
            QueueFull: too many texts wait already. OtherModel: the question is for another release or model.
            QueriesAlone: it has items, and the model was trained on queries alone.
            ConfigError: a feature has an unsuitable value.
        """
        texts = len(question.entries)
        if self.texts and self.texts + texts > MOST_WAITING:
            raise QueueFull
        self.texts += texts
        try:
            waiting = _Waiting(question, asyncio.get_running_loop().create_future())
            self._queue.put_nowait(waiting)
            return await waiting.answer
        finally:
            self.texts -= texts

    async def _run(self) -> None:
        loop, left = asyncio.get_running_loop(), None
        while True:
            batch = [left or await self._queue.get()]
            left = None
            texts, until = len(batch[0].question.entries), loop.time() + GATHER_SECONDS
            while texts < MOST_TEXTS and left is None:
                try:
                    async with asyncio.timeout_at(until):
                        following = await self._queue.get()
                except TimeoutError:
                    break
                if texts + len(following.question.entries) > MOST_TEXTS:
                    left = following
                else:
                    batch.append(following)
                    texts += len(following.question.entries)
            batch = [each for each in batch if not each.answer.done()]  # whose clients have left
            if not batch:
                continue
            self._batched(sum(len(each.question.entries) for each in batch))
            questions = [each.question for each in batch]
            answers = await loop.run_in_executor(self._thread, answer_all, self._answering(), questions)
            for waiting, answer in zip(batch, answers, strict=True):
                if waiting.answer.done():
                    continue
                if isinstance(answer, Answered):
                    waiting.answer.set_result(answer)
                else:
                    waiting.answer.set_exception(answer)


def answer_all(answering: Sequence[Opened], questions: Sequence[Question]) -> list[Answered | Exception]:
    """Return each question's answer by one release, or its error; one bad question does not spoil the others.

    Args:
        answering: releases of different models. The first one answers all that it may, and searches alone.
    """
    try:
        return _together(answering, questions)
    except Exception as error:
        if len(questions) == 1:
            return [error]
        return [each for question in questions for each in answer_all(answering, [question])]


def _together(answering: Sequence[Opened], questions: Sequence[Question]) -> list[Answered | Exception]:
    found: list[Answered | Exception] = [OtherModel(answering[0])] * len(questions)
    whose = [_whose(each, answering) for each in questions]
    sides: tuple[Side, ...] = ("query", "item")
    for by, side in itertools.product(answering, sides):
        own = [at for at, each in enumerate(questions) if each.side == side and whose[at] is by]
        entries = [entry for at in own for entry in questions[at].entries]
        if not entries:
            continue
        if side == "item" and by.vectors_by != by.model_version:
            for at in own:
                found[at] = QueriesAlone(by)
            continue
        ends = np.cumsum([len(questions[at].entries) for at in own])
        for at, vectors in zip(own, np.split(by.encoder.embed(entries, side), ends[:-1]), strict=True):
            found[at] = Answered(by, vectors, _hits(by, vectors, questions[at].k))
    return found


def _whose(question: Question, answering: Sequence[Opened]) -> Opened | None:
    """Return the release that answers, the one with the very model that a question names before others."""
    for model_of in (attrgetter("model_version"), attrgetter("vectors_by")):
        for by in answering:
            named = question.release in (None, by.release) and question.model_version in (None, model_of(by))
            if named and (by is answering[0] or question.k is None):
                return by
    return None


def _hits(by: Opened, vectors: np.ndarray, k: int | None) -> list[tuple[Hit, ...]] | None:
    if k is None or by.vectors is None:
        return None
    return [by.vectors.nearest(vector, k) for vector in vectors]
