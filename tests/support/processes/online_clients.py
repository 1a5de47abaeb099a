"""Clients of an online encoder, of which each answer is judged as it comes: its status, its names, its vectors."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from infra.store.directory import DirectoryStore
from tasks.runs import releases
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Exported
from tests.support.processes.online_server import SECONDS

TEXTS = ("want a red shoe 3 please", "lamp", "a blue bag and one more word about it")
LEAST_COSINE = 0.9999  # to the vector by the release's own encoder; other models of the tests are below 0.9


class Truth:
    """The model of each release, and the vectors of `TEXTS` by each model's export, opened here."""

    def __init__(self, store: DirectoryStore, *numbers: int) -> None:
        found = {number: releases.read(store, number) for number in numbers}
        self.version_of = {number: release.model.version for number, release in found.items()}
        self.vectors_by = {release.model.version: release.model.of_items.version for release in found.values()}
        folders = {each.model.version: store.local(each.model_prefix) / FOLDER / "onnx" for each in found.values()}
        self.vectors = {
            version: dict(zip(TEXTS, Exported(folder, 1).embed(TEXTS, "query"), strict=True))
            for version, folder in folders.items()
        }

    def mixed(self, asked: dict[str, Any], answer: dict[str, Any]) -> str | None:
        """Return the sentence of an answer that mixes models, or None."""
        release, version = answer["release"], answer["model_version"]
        named = asked.get("model_version", version)
        if version != self.version_of[release] or named not in (version, self.vectors_by[version]):
            return f"release {release} with {version}, where {named} was asked for"
        given = np.array(answer.get("vectors", ()))
        for text, vector in zip(asked.get("queries", ()), given, strict=True):
            for other, theirs in self.vectors.items():
                if (vector @ theirs[text] > LEAST_COSINE) != (other == version):
                    return f"{text!r} by {version} has the cosine {vector @ theirs[text]:.4f} to {other}"
        return None


@dataclass
class Seen:
    """One client's part: `took` are the moment, monotonic, and the seconds of each answered request."""

    failed: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    releases: set[int] = field(default_factory=set)
    took: list[tuple[float, float]] = field(default_factory=list)
    vectors_by: str = ""  # the model of the vectors that the last answer is for


def watch(client: httpx.Client, truth: Truth, seen: Seen) -> None:
    """Let each answer of the encoder to a client be judged and timed."""

    def asked(request: httpx.Request) -> None:
        request.extensions["began"] = time.monotonic()

    def answered(response: httpx.Response) -> None:
        response.read()
        began, now = response.request.extensions["began"], time.monotonic()
        if response.status_code != httpx.codes.OK:
            return  # the client raises
        seen.took.append((now, now - began))
        answer = response.json()
        seen.releases.add(answer["release"])
        seen.vectors_by = truth.vectors_by[answer["model_version"]]
        if (sentence := truth.mixed(json.loads(response.request.content), answer)) is not None:
            seen.mixed.append(sentence)

    client.event_hooks = {"request": [asked], "response": [answered]}


@contextlib.contextmanager
def direct(url: str, truth: Truth, seen: Seen) -> Iterator[Callable[[], None]]:
    """Yield the round of a client that asks the server alone: for vectors, then for hits."""
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        watch(client, truth, seen)

        def ask() -> None:
            for path, body in (("/embed", {"queries": TEXTS}), ("/search", {"query": TEXTS[0], "k": 5})):
                client.post(path, json=body).raise_for_status()

        yield ask


class Client(threading.Thread):
    """A thread that repeats one round, at most once in `every` seconds, until it is ended."""

    def __init__(
        self,
        rounds: AbstractContextManager[Callable[[], None]],
        seen: Seen,
        ended: threading.Event,
        every: float = 0.0,
    ) -> None:
        super().__init__()
        self._rounds, self._ended, self._every = rounds, ended, every
        self.seen = seen

    def run(self) -> None:
        with self._rounds as ask:
            self._ask_on(ask)

    def _ask_on(self, ask: Callable[[], None]) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            began = time.monotonic()
            try:
                ask()
            except Exception as error:  # whatever it is, a consumer would have got no hits
                said = f": {error.response.text}" if isinstance(error, httpx.HTTPStatusError) else ""
                self.seen.failed.append(f"{error!r}{said}")
            wait = max(0.0, self._every - (time.monotonic() - began))
