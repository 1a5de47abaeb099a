"""A device that works beside the host, made of the processor: batches, works and results pass through threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import torch

from tasks.worker.devices.ahead import make_ahead, one_behind
from tasks.worker.devices.base import M, T
from tasks.worker.devices.cpu import CpuAccelerator


class Beside(CpuAccelerator):
    """`threads`: names of the threads that did each kind of work; `most_started`: results not yet waited for."""

    def __init__(self, rank) -> None:
        super().__init__(rank)
        self.threads: set[str] = set()
        self.started = self.most_started = 0

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        yield from make_ahead(batches, lambda batch: batch)

    def ahead(self, works: Iterable[T]) -> Iterator[T]:
        def named(work: T) -> T:
            self.threads.add(str(threading.get_ident()))
            return work

        yield from make_ahead(works, named)

    def fetch_behind(self, results: Iterable[tuple[T, torch.Tensor]]) -> Iterator[tuple[T, torch.Tensor]]:
        def start(tensor: torch.Tensor):
            self.started += 1
            self.most_started = max(self.most_started, self.started)

            def wait() -> torch.Tensor:
                self.started -= 1
                return tensor

            return wait

        return one_behind((what, start(tensor)) for what, tensor in results)
