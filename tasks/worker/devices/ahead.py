"""Threads beside the main one: batches made ahead and results taken one behind, for devices that work beside the host.

And threads for the host's own cores.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from tasks.worker.process.threads import use_own_cores

AHEAD = 2  # batches that wait for the device: one to be copied while one is made
ALIGNED = 64  # bytes; a multiple of every number's size

T = TypeVar("T")
U = TypeVar("U")
B = TypeVar("B", bound=Any)


def make_ahead(batches: Iterable[T], prepare: Callable[[T], U]) -> Generator[U]:
    """Yield `prepare` of each batch, in order. A thread makes them, at most AHEAD more than are taken.

    An error of the thread is raised here, after the batches before it. The thread ends once this iterator is closed.
    """
    made: queue.Queue[tuple[U | None, BaseException | None]] = queue.Queue(AHEAD)
    closed = threading.Event()

    def make() -> None:
        error = None
        try:
            for batch in batches:
                made.put((prepare(batch), None))
                if closed.is_set():
                    return
        except BaseException as raised:  # raised again by the thread that takes the batches
            error = raised
        made.put((None, error))

    thread = threading.Thread(target=make, name="batches", daemon=True)
    thread.start()
    try:
        while True:
            batch, error = made.get()
            if error is not None:
                raise error
            if batch is None:
                return
            yield batch
    finally:
        closed.set()
        while thread.is_alive():
            try:
                made.get(timeout=0.01)  # it may wait for room
            except queue.Empty:
                continue


def own_threads() -> ThreadPoolExecutor:
    """Return a pool with a thread for each core of this worker; the main thread is bound to one of them."""
    return ThreadPoolExecutor(torch.get_num_threads(), initializer=use_own_cores)


def one_behind(started: Iterable[tuple[T, Callable[[], U]]]) -> Iterator[tuple[T, U]]:
    """Yield each work with its result, in order; wait for a result only after the next work was started."""
    before: list[tuple[T, Callable[[], U]]] = []
    for what, wait in started:
        before.append((what, wait))
        if len(before) > 1:
            last, finish = before.pop(0)
            yield last, finish()
    for last, finish in before:
        yield last, finish()


@dataclasses.dataclass(frozen=True)
class FlatBatch:
    """A batch whose tensors share one buffer, uint8 (bytes,), so that one copy moves them all."""

    buffer: torch.Tensor
    batch: Any

    @classmethod
    def of(cls, batch: Any, pinned: bool) -> FlatBatch:
        """Copy the tensors of a dataclass, and of dataclasses inside it, into a new buffer.

        Args:
            pinned: in memory that the device reads by itself.
        """
        sizes = [_room(tensor) for tensor in _tensors(batch)]
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
        flat = cls(buffer, batch)
        for tensor, place in zip(_tensors(batch), _tensors(flat.on(buffer)), strict=True):
            place.copy_(tensor)
        return flat

    def to(self, device: torch.device) -> Any:
        """Return the batch on the device; the copy may still be under way, in the order of the device's work."""
        return self.on(self.buffer.to(device, non_blocking=True))

    def on(self, buffer: torch.Tensor) -> Any:
        """Return the batch with its tensors in `buffer`."""
        begin = 0

        def place(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal begin
            part = buffer[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            begin += _room(tensor)
            return part

        return replace_tensors(self.batch, place)


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // ALIGNED) * ALIGNED


def _tensors(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    replace_tensors(batch, lambda tensor: found.append(tensor) or tensor)
    return found


def replace_tensors(batch: B, change: Callable[[torch.Tensor], torch.Tensor]) -> B:
    """Return a dataclass with `change` of each tensor, in the order of the fields."""
    changed = {}
    for name, value in vars(batch).items():
        if isinstance(value, torch.Tensor):
            changed[name] = change(value)
        elif dataclasses.is_dataclass(value):
            changed[name] = replace_tensors(value, change)
    return dataclasses.replace(batch, **changed)
