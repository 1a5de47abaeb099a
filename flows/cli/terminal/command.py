"""`@command` makes a function a command of `millrace`: it adds the shared options, and prints the result.

It opens no workspace and reads no settings for a command that asks for none.
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer

from flows.cli.terminal.options import HERE, Reading, RunOptions, assignments, existing, found_config
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.foundation.records import Record

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
            Path | None,
            None,
            "--config",
            envvar="MILLRACE_CONFIG",
            help="A YAML file with settings that override base.yaml; default: ./millrace.yaml, if it exists.",
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
    )
}
_NEEDS = {Store: ("workspace",), RunOptions: ("workspace", "config_file", "settings")}


class Command(NamedTuple):
    """A function as the command line calls it, and the records that it prints with --json."""

    call: Callable[..., None]
    prints: tuple[type[Record], ...]


COMMANDS: dict[str, Command] = {}  # by name, of all modules that were imported


def command(
    show: Callable[..., None] | None = None,
    *,
    name: str | None = None,
    new: bool = False,
    exit_code: Callable[[Any], int] = lambda output: 0,
) -> Callable[[F], F]:
    """Register a function, which itself stays as it is, as a command with its name or `name`, as in `backfill list`.

    A first parameter of type `Store` brings `--workspace`, one of type `RunOptions` also `--config` and `--set`; a
    function that returns a record has `--json`. It may name one of the shared options itself to get its value. A
    parameter of type `Reading` brings the options about the spelling of a source.

    Args:
        show: prints the record for people; its parameters after the record are options of the command, by name.
        new: the workspace may hold no span yet.
        exit_code: of a record that was printed.
    """

    def register(function: F) -> F:
        title = name or function.__name__.replace("_", "-")
        COMMANDS[title] = _command(function, show, open_store if new else existing, exit_code)
        return function

    return register


def _command(
    function: Callable[..., Any],
    show: Callable[..., None] | None,
    opened: Callable[[str], Store],
    exit_code: Callable[[Any], int],
) -> Command:
    signature = inspect.signature(function, eval_str=True)
    own = [each for each in signature.parameters.values() if each.annotation is not Reading]
    reading = [each.name for each in signature.parameters.values() if each.annotation is Reading]
    needs = _NEEDS.get(own[0].annotation, ()) if own else ()
    first = own.pop(0).name if needs else None
    prints = tuple(kind for kind in _kinds(signature.return_annotation) if issubclass(kind, Record))
    shared = {*needs, *(["as_json"] if prints else []), *(each.name for each in own if _is_shared(each))}

    @functools.wraps(function)
    def call(**given: Any) -> None:
        named = False
        if "config_file" in shared:
            named = given["config_file"] is not None
            given["config_file"] = given["config_file"] or found_config()
        arguments = {each.name: given[each.name] for each in own}
        if first is not None:
            store = opened(given["workspace"])
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
        elif show is not None:
            show(output, **_asked(show, arguments))
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
            from flows.cli.terminal.json_schema import json_schema

            typer.echo(json.dumps(json_schema(*prints), indent=2))
            raise typer.Exit

    about = "Print the schema of that JSON, with the meaning of each key, and do nothing else."
    return _shared("json_schema", bool, False, "--json-schema", is_eager=True, callback=answer, help=about)


def _is_shared(parameter: inspect.Parameter) -> bool:
    return parameter.name in _SHARED and get_origin(parameter.annotation) is not Annotated


def _kinds(annotation: Any) -> tuple[type, ...]:
    return tuple(kind for kind in (get_args(annotation) or (annotation,)) if isinstance(kind, type))


def _asked(show: Callable[..., None], arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(show).parameters)[1:]
    return {name: arguments[name] for name in names}
