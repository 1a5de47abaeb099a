"""The command `millrace`: its list of commands. A command's module is imported when it runs, so that `--help` is fast.

Results go to standard output, everything else to standard error, so `--json` prints pure JSON.
"""

import ast
import functools
import importlib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from flows.cli.terminal.command import COMMANDS
from flows.cli.terminal.options import absent, plain_value, refusal
from tasks.foundation.errors import CancelledError
from tasks.foundation.process import code_version, laboratory_is_here

MODULES = {  # by panel of the help page: command -> the module that has it, of this folder or with its whole name
    "Begin here": {
        "look": "ingesting",
        "init": "starting",
        "ingest": "ingesting",
        "run": "running",
        "search": "searching",
        "report": "report",
    },
    "Work": {
        "plan": "flows.laboratory.plan",
        "adopt": "ingesting",
        "skip": "ingesting",
        "refresh": "running",
        "gate": "gating",
        "backfill": "backfilling",
        "try": "experiments",
    },
    "Results": {
        "status": "status",
        "releases": "releases",
        "rollback": "releases",
        "hold": "releases",
        "publish": "releases",
        "diff": "searching",
        "compare": "experiments",
        "history": "history",
        "serve": "servers",
    },
    "Operation": {
        "config": "settings",
        "freshness": "status",
        "doctor": "doctor",
        "hosts": "upkeep",
        "jobs": "upkeep",
        "reap": "upkeep",
        "prune": "upkeep",
        "erase": "erasing",
        "deploy": "deploying",
        "drain": "draining",
        "up": "servers",
        "down": "servers",
    },
    "Laboratory": {
        "decide": "flows.laboratory.decide",
        "goodput": "flows.laboratory.goodput",
        "bakeoff": "flows.laboratory.side_commands",
        "parity": "flows.laboratory.side_commands",
        "import-checkpoint": "flows.laboratory.importing",
    },
}

if not laboratory_is_here():
    MODULES = {
        panel: {name: module for name, module in modules.items() if not module.startswith("flows.laboratory.")}
        for panel, modules in MODULES.items()
    }

RUN = "run"  # the word of a group for the command with its bare name


class _Later(TyperCommand):
    """A command that is not loaded yet; its line of the help page is read from the source."""

    def __init__(self, name: str, panel: str) -> None:
        super().__init__(name, help=_docstrings(MODULES[panel][name])[name.replace("-", "_")], rich_help_panel=panel)
        self._title, self._module = name, MODULES[panel][name]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        importlib.import_module(module_name(self._module))
        return loaded(self._title).make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    """All commands. Ctrl-C and SIGTERM raise CancelledError, for the exit code of its class instead of typer's."""

    def __init__(self, **attributes: Any) -> None:
        later = {name: _Later(name, panel) for panel, modules in MODULES.items() for name in modules}
        super().__init__(**{**attributes, "commands": later})

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            how = str(error) or "Ctrl-C"
            raise CancelledError(f"stopped by {how}; what was finished is kept") from None


class _OneCommand(TyperCommand):
    """A command whose refusal of a word that no parameter takes names the option that was probably meant."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        typed = list(args)
        ctx.allow_extra_args = True
        options = {option for each in self.params for option in each.opts if option.startswith("-")} | {"--help"}
        options |= {option for each in self.params for option in each.secondary_opts}
        if (answer := absent(self.name or "", typed, options)) is not None:
            ctx.fail(answer)
        try:
            extra = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = plain_value(error.message)
            raise
        if extra:
            arguments = {each.name or "" for each in self.params if each.param_type_name == "argument"}
            ctx.fail(refusal(extra, typed, options, arguments))
        return extra


class _WithDefault(TyperGroup):
    """The commands `NAME` and `NAME WORD`: the first is meant unless a word of the others follows."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args[0] in (*self.commands, "--help") if args else ctx.resilient_parsing  # a shell completes the first
        return super().parse_args(ctx, args if known else [RUN, *args])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        return [*super().shell_complete(ctx, incomplete), *self.commands[RUN].shell_complete(ctx, incomplete)]


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    """Return parameters whose help does not call a flag, which takes no value, <bool>."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


def module_name(entry: str) -> str:
    """Return the whole name of a module in `MODULES`."""
    return entry if entry.startswith("flows.") else f"flows.cli.{entry}"


def loaded(name: str) -> Any:
    """Return a command of an imported module, with its subcommands: `backfill` with `backfill list`."""
    others = {
        title.removeprefix(f"{name} "): each.call for title, each in COMMANDS.items() if title.startswith(f"{name} ")
    }
    alone = _typer()
    alone.command(name, cls=_OneCommand)(COMMANDS[name].call)
    if not others:
        return get_command(alone)
    about = f"{COMMANDS[name].call.__doc__}\n\nIts options: millrace {name} {RUN} --help."
    group = _typer(cls=_WithDefault, help=about)
    for word, call in {RUN: COMMANDS[name].call, **others}.items():
        group.command(word, cls=_OneCommand)(call)
    return get_command(group)


def all_commands() -> dict[str, Any]:
    """Import every command; return it by its words, as in `backfill list`, with its parameters."""
    found: dict[str, Any] = {}
    for name, module in (item for modules in MODULES.values() for item in modules.items()):
        importlib.import_module(module_name(module))
        made = loaded(name)
        parts = {
            f"{name} {word}" if word != RUN else name: each for word, each in getattr(made, "commands", {}).items()
        }
        found |= parts or {name: made}
    return found


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    path = Path(__file__).parents[2] / f"{module_name(module).replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    return {each.name.rstrip("_"): ast.get_docstring(each) or "" for each in functions}  # `try` can't name a function


def _typer(completion: bool = False, **options: Any) -> typer.Typer:
    return typer.Typer(add_completion=completion, pretty_exceptions_enable=False, **options)  # `main` prints errors


app = _typer(completion=True, cls=_Commands, no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"millrace {code_version()}")
        raise typer.Exit


@app.callback()
def millrace(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version, with a hash of its files."
        ),
    ] = False,
) -> None:
    """Keep an embedding model and its vectors fresh: span by span, from data to release."""
