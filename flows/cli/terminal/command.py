"""`@command` makes a function a command of `millrace`: it adds the shared options, and prints the result.

It opens no workspace and reads no settings for a command that asks for none. The JSON schema of a result names types,
and a meaning for each key: the description of its field; keys with one meaning in all records have it here, once.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import PurePath
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from pydantic import TypeAdapter

from flows.cli.terminal import console
from flows.cli.terminal.options import HERE, Reading, RunOptions, assignments, existing, found_config
from flows.presentation.model import Parts
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.foundation.s3_path import local_or_s3

MEANINGS = {
    "accelerator": "accelerator: cpu, cuda, neuron or xla",
    "action": "action that was taken",
    "at": "time, ISO 8601 in UTC",
    "attempts": "number of attempts",
    "backfill": "backfill as it is now",
    "backfills": "backfills in the order of their last start",
    "began_at": "begin, ISO 8601 in UTC",
    "bytes": "size in bytes",
    "checkpoint": "checkpoint",
    "column": "name of the column",
    "config_file": "path of the configuration file; null: base.yaml alone",
    "created_at": "time at which it was made, ISO 8601 in UTC",
    "deadline": "time at which it is late, ISO 8601 in UTC",
    "deployments": "deployments on the server",
    "device": "name of the device",
    "done": "true: it has a result",
    "embedded_at": "end of infer, ISO 8601 in UTC; null: not reached",
    "ended_at": "end, ISO 8601 in UTC; null: not over",
    "evaluated_at": "end of evaluate, ISO 8601 in UTC; null: not reached",
    "expected_dollars": "expected cost in dollars; null: not known",
    "failed": "number of failures",
    "failure": "failure class; null: no failure",
    "file": "path of the file",
    "files": "number of files",
    "findings": "findings, in the order of the examination",
    "first": "first span of the range",
    "flow_run": "id of the Prefect flow run; empty: none",
    "folders": "folders that nothing needs",
    "found": "observation in words",
    "grace_minutes": "minutes without a waiting process after which a job is ended",
    "hits": "hits, best first",
    "host": "host, by its instance id or name",
    "hosts": "hosts",
    "id": "id",
    "item_id": "id of the item",
    "items": "number of items",
    "items_after": "items of the later release",
    "items_before": "items of the earlier release",
    "job": "id of the AWS Batch job",
    "jobs": "jobs that were examined",
    "last": "last span of the range",
    "left": "left side of the comparison",
    "lifted_at": "time at which it was lifted, ISO 8601 in UTC; null: not lifted",
    "lifted_by": "user and machine that lifted it; null: not lifted",
    "lineage": "name of the lineage",
    "lineages": "lineages, each at its last checkpoint",
    "message": "message of the failure; empty: none",
    "metric": "name of the metric",
    "metrics": "metrics by name",
    "misses": "graphs that the cache's manifest does not name",
    "model": "model of the release",
    "model_prefix": "key of the model's folder",
    "model_version": "model version",
    "name": "name",
    "number": "number of the release",
    "observed": "observed number; null: none",
    "overrides": "decisions of people to release although gates refused",
    "page": "address of the page; empty: not known",
    "partitions": "number of partitions",
    "passed": "true: passed",
    "precision": "arithmetic: bf16, bf16-weights or fp32",
    "prefix": "key of the folder",
    "query": "text of the query",
    "queues": "job queues",
    "reason": "reason in words",
    "relative_difference": "difference divided by the larger magnitude",
    "release": "number of the release; null: none",
    "released_at": "time of the release, ISO 8601 in UTC; null: not reached",
    "report": "report",
    "right": "right side of the comparison",
    "rows": "number of rows",
    "run_key": "key of the run; its files are in runs/<run key>/",
    "scheduled_at": "scheduled time, ISO 8601 in UTC; null: started by hand",
    "score": "cosine of query and item",
    "seconds": "seconds",
    "sentence": "explanation in words",
    "sentences": "explanations in words",
    "severity": "critical: a failure stops; warning: it is reported",
    "sha256": "SHA-256",
    "slices": "metrics by slice",
    "span": "span, for example 2026-W47",
    "spans": "spans, oldest first",
    "stage": "stage",
    "stages": "stages in their order",
    "stale": "true: the released vectors are older than allowed",
    "standing": "standing against the deadline",
    "started_at": "start, ISO 8601 in UTC",
    "state": "state",
    "status": "status at AWS Batch",
    "step": "global step along the lineage",
    "strikes": "suspicions of the host",
    "succeeded": "attempts that succeeded",
    "target": "target as configured",
    "text": "text of the item",
    "timezone": "time zone by its IANA name; null: no schedule",
    "total_bytes": "size of all in bytes",
    "trained_at": "end of train, ISO 8601 in UTC; null: not reached",
    "ui_url": "address of the Prefect server",
    "unreadable": "records that can't be read",
    "updated_at": "time of the last change, ISO 8601 in UTC",
    "urgent": "true: a person should act",
    "url": "address",
    "validated_at": "end of validate, ISO 8601 in UTC; null: not reached",
    "value": "value; null: not defined",
    "vectors": "number of vectors",
    "vectors_prefix": "key of the vectors' folder",
    "verdicts": "verdicts of the gates",
    "version": "version of this record's format",
    "warned": "number of warnings",
    "way_out": "command or step that solves it",
    "why": "reason in words",
    "window": "spans that are trained together",
    "work_pool": "Prefect work pool",
    "workers": "worker processes",
    "workspace": "address of the workspace",
}


def json_schema(*kinds: type[Record]) -> dict[str, Any]:
    """Return the JSON schema of a record, or of any of several."""
    schema = TypeAdapter(reduce(or_, kinds)).json_schema(mode="serialization", by_alias=True)
    for _, name, value in keys(schema):
        if "description" not in value and name in MEANINGS:
            value["description"] = MEANINGS[name]
    return schema


def keys(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the keys of a schema and of all records inside it: title of the record, name of the key, its own schema."""
    for each in (schema, *schema.get("$defs", {}).values()):
        for name, value in each.get("properties", {}).items():
            yield each["title"], name, value


F = TypeVar("F", bound=Callable[..., Any])


def _shared(name: str, kind: Any, default: Any, *names: str, **option: Any) -> inspect.Parameter:
    annotation = Annotated[kind, typer.Option(*names, **option)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_WORKSPACE = "Where spans, runs and releases are stored: a folder or s3://bucket/prefix."
_SHARED = {
    each.name: each
    for each in (
        _shared("workspace", str, HERE, envvar="MILLRACE_WORKSPACE", help=_WORKSPACE),
        _shared(
            "config_file",
            PurePath | None,
            None,
            "--config",
            parser=local_or_s3,
            metavar="PATH",
            envvar="MILLRACE_CONFIG",
            help="A YAML file, or s3://bucket/key.yaml, with settings that override base.yaml; default: "
            "./millrace.yaml, if it exists.",
        ),
        _shared(
            "settings",
            list[str] | None,
            None,
            "--set",
            autocompletion=assignments,
            help="Override one setting, e.g. train.epochs=2.",
        ),
        _shared("as_json", bool, False, "--json", help="Print JSON for scripts; see --json-schema."),
        _shared("as_markdown", bool, False, "--markdown", help="Print Markdown, for a chat or a ticket."),
    )
}
_NEEDS = {Store: ("workspace",), RunOptions: ("workspace", "config_file", "settings")}


class Command(NamedTuple):
    """A function as the command line calls it, and the records that it prints with --json."""

    call: Callable[..., None]
    prints: tuple[type[Record], ...]


COMMANDS: dict[str, Command] = {}  # by name, of all modules that were imported


def command(
    page: Callable[..., Parts] | None = None,
    *,
    name: str | None = None,
    new: bool = False,
    exit_code: Callable[[Any], int] = lambda output: 0,
) -> Callable[[F], F]:
    """Register a function, which itself stays as it is, as a command with its name or `name`, as in `backfill list`.

    A first parameter of type `Store` brings `--workspace`, one of type `RunOptions` also `--config` and `--set`; a
    function that returns a record has `--json` and `--markdown`. It may name one of the shared options itself to get
    its value. A parameter of type `Reading` brings the options about the spelling of a source.

    Args:
        page: shows the record to people; its parameters after the record are options of the command, by name.
        new: the workspace may hold no span yet.
        exit_code: of a record that was printed.
    """

    def register(function: F) -> F:
        title = name or function.__name__.replace("_", "-")
        COMMANDS[title] = _command(function, page, open_store if new else existing, exit_code)
        return function

    return register


def _command(
    function: Callable[..., Any],
    page: Callable[..., Parts] | None,
    opened: Callable[[str], Store],
    exit_code: Callable[[Any], int],
) -> Command:
    signature = inspect.signature(function, eval_str=True)
    own = [each for each in signature.parameters.values() if each.annotation is not Reading]
    reading = [each.name for each in signature.parameters.values() if each.annotation is Reading]
    needs = _NEEDS.get(own[0].annotation, ()) if own else ()
    first = own.pop(0).name if needs else None
    prints = tuple(kind for kind in _kinds(signature.return_annotation) if issubclass(kind, Record))
    shared = {*needs, *(["as_json", "as_markdown"] if prints else []), *(each.name for each in own if _is_shared(each))}

    @functools.wraps(function)
    def call(**given: Any) -> None:
        if given.get("as_json") and given.get("as_markdown"):
            raise ConfigError("give --json or --markdown, not both")
        named = False
        if "config_file" in shared:
            named = given["config_file"] is not None
            given["config_file"] = given["config_file"] or found_config()
        arguments = {each.name: given[each.name] for each in own}
        workspace = ""
        if first is not None:
            store = opened(given["workspace"])
            workspace = store.uri
            with_settings = "settings" in needs
            arguments[first] = (
                RunOptions(store, given["config_file"], given["settings"] or (), named) if with_settings else store
            )
        arguments |= {each: Reading(**{field: given[field] for field in Reading._fields}) for each in reading}
        output = function(**arguments)
        if output is None:
            return
        if given.get("as_json"):
            typer.echo(output.to_json(), nl=False)
        elif page is not None:
            show = console.show_markdown if given.get("as_markdown") else console.show
            show(page(output, **_asked(page, arguments)), workspace)
        if code := exit_code(output):
            raise typer.Exit(code)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own if not _is_shared(each)]
    parameters += _of_reading() if reading else []
    parameters += [each for name, each in _SHARED.items() if name in shared]
    parameters += [_json_schema_option(prints)] if prints else []
    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return Command(call, prints)


def _of_reading() -> list[inspect.Parameter]:
    kinds, defaults = get_type_hints(Reading, include_extras=True), Reading._field_defaults
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=defaults[name], annotation=kinds[name]) for name in kinds]


def _json_schema_option(prints: tuple[type[Record], ...]) -> inspect.Parameter:
    def answer(asked: bool) -> None:
        if asked:
            typer.echo(json.dumps(json_schema(*prints), indent=2))
            raise typer.Exit

    about = "Print the schema of that JSON, with the meaning of each key, and do nothing else."
    return _shared("json_schema", bool, False, "--json-schema", is_eager=True, callback=answer, help=about)


def _is_shared(parameter: inspect.Parameter) -> bool:
    return parameter.name in _SHARED and get_origin(parameter.annotation) is not Annotated


def _kinds(annotation: Any) -> tuple[type, ...]:
    return tuple(kind for kind in (get_args(annotation) or (annotation,)) if isinstance(kind, type))


def _asked(page: Callable[..., Parts], arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(page).parameters)[1:]
    return {name: arguments[name] for name in names}
