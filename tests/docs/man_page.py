"""docs/millrace.1, the man page, written whole from the help of the commands. `make docs` rewrites it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.cli.app import MODULES, all_commands, millrace
from tasks.foundation.errors import POLICIES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "millrace.1"
_SHARED = ("--workspace", "--config", "--set", "--json", "--markdown", "--json-schema")  # described once
_ABOUT = """Results go to standard output, progress, warnings and errors to standard error. Settings are
configs/base.yaml, then one file, then each --set. The file is that of --config, else of MILLRACE_CONFIG, else
millrace.yaml in the working directory, else none. "millrace config" shows each key, and "millrace COMMAND --help" the
options of one command."""
_VARIABLES = {
    "PREFECT_API_URL": "Address of the Prefect server; without it run, backfill, try, bakeoff and parity start one.",
    "PREFECT_HOME": "Folder of a server that is started here, with its log and password; default: ./.prefect.",
    "NO_COLOR": "If it is set, nothing is coloured.",
}
_FILES = {
    "millrace.yaml": 'Settings of this folder; "millrace init" writes it.',
    "workspace": "Spans, runs, models, vectors and releases, unless --workspace names another place.",
}


def page() -> str:
    """Return the page in the macros of man(7)."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    commands = all_commands()
    yield r".\" Written by `make docs` from the help of the commands; change it there."
    yield f'.TH MILLRACE 1 "" "millrace {version}" "User Commands"'
    yield ".SH NAME"
    yield _text(f"millrace - {(millrace.__doc__ or '').strip()[0].lower()}{(millrace.__doc__ or '').strip()[1:-1]}")
    yield ".SH SYNOPSIS"
    yield from (".B millrace", r".I COMMAND", r"[\fIOPTION\fR]...", ".br", r".B millrace \-\-version")
    yield from (".SH DESCRIPTION", _text(_ABOUT), ".SH COMMANDS")
    for panel, modules in MODULES.items():
        yield f".SS {panel}"
        for title, each in commands.items():
            if title.split()[0] in modules:
                yield from _command(title, each)
    yield ".SH SHARED OPTIONS"
    shared = {
        option: each for each in commands.values() for each in each.params for option in each.opts if option in _SHARED
    }
    for option in _SHARED:
        yield from _option(shared[option])
    yield ".SH EXIT STATUS"
    yield from _items({"0": "Done; a rejected model is a result too.", "2": "The command line is not understood."})
    codes = sorted(POLICIES.items(), key=lambda each: each[1].exit_code)
    yield from _items({str(policy.exit_code): f"{name}: {policy.meaning}." for name, policy in codes})
    yield ".SH ENVIRONMENT"
    named = {
        each.envvar: f"The value of {option}, if it is not given." for option, each in shared.items() if each.envvar
    }
    yield from _items({**named, **_VARIABLES})
    yield ".SH FILES"
    yield from _items(_FILES)
    yield ".SH SEE ALSO"
    yield _text("The pages in docs/, docs/README.md first.")


def _command(title: str, command: Any) -> Iterator[str]:
    """Yield a command's synopsis, its help, and its own options."""
    own = [each for each in command.params if not set(each.opts) & set(_SHARED)]
    arguments = [each for each in own if each.param_type_name == "argument"]
    words = [f"[{_name(each)}]" if not each.required else _name(each) for each in arguments]
    needed = [f"{each.opts[0]} {_kind(each)}" for each in own if each.required and each not in arguments]
    yield ".TP"
    yield rf"\fB{_text(title)}\fR {_text(' '.join([*words, *needed]))}".rstrip()
    paragraphs = re.split(r"\n\s*\n", command.help or "")
    yield _text(paragraphs[0])
    for paragraph in paragraphs[1:]:
        yield from (".IP", _text(paragraph))
    if own:
        yield ".RS"
        for each in own:
            yield from _option(each)
        yield ".RE"


def _option(option: Any) -> Iterator[str]:
    if option.param_type_name == "argument":
        name = rf"\fI{_text(_name(option))}\fR"
    else:
        kind = "" if option.is_flag else rf" \fI{_text(_kind(option))}\fR"
        name = rf"\fB{_text(', '.join([*option.opts, *option.secondary_opts]))}\fR{kind}"
    default = option.default if isinstance(option.default, str | int | float) and not option.is_flag else None
    given = f" [default: {getattr(default, 'value', default)}]" if default is not None and option.show_default else ""
    yield from (".TP", name, _text(f"{option.help or ''}{given}"))


def _items(texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        yield from (".TP", rf"\fB{_text(name)}\fR", _text(text))


def _name(argument: Any) -> str:
    return (argument.metavar or argument.name).upper()


def _kind(option: Any) -> str:
    """Return the value of an option in a synopsis, as in SPAN, or the words that it may be."""
    choices = option.type_descriptor.choices
    return option.metavar or ("|".join(map(str, choices)) if choices else option.opts[0].lstrip("-").upper())


def _text(text: str) -> str:
    """Return a text whose signs mean nothing to groff."""
    escaped = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
