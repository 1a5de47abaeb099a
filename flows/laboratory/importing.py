"""`millrace import-checkpoint`: the imported tensors, the others, and the command to continue training."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from configs.schema.config import Config
from flows.cli.terminal.command import command
from flows.cli.terminal.options import RunOptions
from flows.cli.terminal.progress_bars import display
from flows.presentation.model import Parts
from tasks.contracts.references import SpanRef
from tasks.foundation.records import Record
from tasks.running.context import override_context

LISTED = 10  # names of each kind that people see; scripts get all


class ImportOutput(Record):
    """`millrace import-checkpoint`."""

    lineage: str
    checkpoint: str = Field(description="key of the lineage's first checkpoint")
    run_key: str = Field(description="key of the run; runs/<run key>/import-checkpoint/ has the record")
    file: str
    sha256: str
    window: tuple[SpanRef, ...] = Field(description="spans that the rest of the model was made from")
    tokenizer: str = Field(
        description="source of the tokenizer, which must be the one that the weights were trained with"
    )
    mapped: int = Field(description="tensors that come from the file")
    ignored: tuple[str, ...] = Field(description="tensors of the file that the model does not have")
    new: tuple[str, ...] = Field(description="tensors of the model that the file lacks; initialized as in a new model")
    next: str = Field(description="command that trains on from here")


def import_page(output: ImportOutput) -> Parts:
    """Yield the imported tensors, the others, and the command to continue."""
    yield f"lineage {output.lineage} begins with {output.mapped} tensors of {output.file}: {output.checkpoint}"
    yield from _names("LEFT OUT: not in the model", output.ignored)
    yield from _names("new: not in the file", output.new)
    yield f"tokenizer: {output.tokenizer}; weights trained with another tokenizer are useless"
    yield f"next: {output.next}"


@command(import_page, new=True)
def import_checkpoint(
    options: RunOptions,
    file: Annotated[Path, typer.Argument(help="Made by torch.save(model.state_dict(), FILE), or safetensors.")],
    span: Annotated[str | None, typer.Option(help="Last span of the first run; default: the oldest.")] = None,
) -> ImportOutput:
    """Begin a lineage with weights from a file instead of a new model."""
    config = options.config()
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # else each warning shows twice

    from tasks.laboratory import import_checkpoint as control  # only now: it loads Prefect, which reads the environment

    with display() as listener, override_context(listener=listener):
        plan, outcome = control.import_checkpoint(options.store, config, file, span)
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
        new=outcome.new,
        next=shlex.join(["millrace", "run", "--span", plan.span.name, *options.arguments()]),
    )


def _names(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{what} ({len(names)}): {', '.join(names[:LISTED])}{rest}"]


def _tokenizer(config: Config, window: Sequence[SpanRef]) -> str:
    if config.model.pretrained is not None:
        return f"from model.pretrained, {config.model.pretrained}"
    return f"trained on the texts of {', '.join(span.name for span in window)}"
