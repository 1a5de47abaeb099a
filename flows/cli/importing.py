"""`millrace import-checkpoint`: what of a file was taken, what was not, and the command that trains on from there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field
from rich.console import Console

from configs.load import load_config
from configs.schema import Config
from flows.console import display
from infra.store import Store
from tasks.contracts import SpanRef
from tasks.records import Record

LISTED = 10  # names of each kind that people are shown; scripts get all


class ImportOutput(Record):
    """`millrace import-checkpoint`."""

    lineage: str
    checkpoint: str = Field(description="key of the lineage's first checkpoint")
    run_key: str = Field(description="runs/<run key>/import-checkpoint/ has the record")
    file: str
    sha256: str
    window: tuple[SpanRef, ...] = Field(description="the spans that the rest of the model was made from")
    tokenizer: str = Field(description="where it is from; it must be the one that the weights were trained with")
    mapped: int
    ignored: tuple[str, ...]
    unexpected: tuple[str, ...]
    new: tuple[str, ...]
    next: str = Field(description="the command that trains on from here")


def import_weights(
    store: Store, file: Path, span: str | None, place: Path | None, overrides: Sequence[str]
) -> ImportOutput:
    """Raises StageError as `load_config` and `tasks.import_checkpoint` do."""
    config = load_config(place, overrides)
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # else it tells each warning a second time

    from tasks.import_checkpoint import import_checkpoint  # not before: it imports Prefect, which reads that then
    from tasks.stage import listening

    with display() as listener, listening(listener):
        plan, outcome = import_checkpoint(store, config, file, span)
    return ImportOutput(
        lineage=config.lineage,
        checkpoint=outcome.checkpoint.prefix,
        run_key=plan.run_key,
        file=str(file.expanduser().absolute()),
        sha256=outcome.sha256,
        window=plan.window,
        tokenizer=_tokenizer(config, plan.window),
        mapped=outcome.mapped,
        ignored=outcome.ignored,
        unexpected=outcome.unexpected,
        new=outcome.new,
        next=_next(store, plan.span, place, overrides),
    )


def show(output: ImportOutput) -> None:
    """As people read it."""
    lines = [
        f"lineage {output.lineage} begins with {output.mapped} tensors of {output.file}: {output.checkpoint}",
        *_names("ignored, as they are of no use here", output.ignored),
        *_names("LEFT OUT, as nothing of the model is like them", output.unexpected),
        *_names("new, as the file lacks them", output.new),
        f"tokenizer: {output.tokenizer}; weights that were trained with another one mean nothing",
        f"next: {output.next}",
    ]
    for line in lines:
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


def _names(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{what} ({len(names)}): {', '.join(names[:LISTED])}{rest}"]


def _tokenizer(config: Config, window: Sequence[SpanRef]) -> str:
    if config.model.pretrained is not None:
        return f"that of model.pretrained, {config.model.pretrained}"
    return f"trained on the texts of {', '.join(span.name for span in window)}"


def _next(store: Store, span: SpanRef, place: Path | None, overrides: Sequence[str]) -> str:
    settings = [word for setting in overrides for word in ("--set", setting)]
    config = ["--config", str(place)] if place is not None else []
    return shlex.join(["millrace", "run", "--span", span.name, "--workspace", store.uri, *config, *settings])
