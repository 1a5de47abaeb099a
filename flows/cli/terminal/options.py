"""Options of several commands: workspace, settings, files to write, reading of a source; words for a shell.

For a word that no parameter takes, the option that was probably meant.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.spans import kind_of
from tasks.data.files.csv_rows import CsvOptions, Quote, parse_delimiter
from tasks.data.files.formats import Format
from tasks.data.files.nested import parse_explode
from tasks.data.files.shaping import Lookup, Shaping, parse_only
from tasks.data.files.sources import source_path
from tasks.data.files.spelling import Spelling, parse_spelling
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.passwords import masked

if TYPE_CHECKING:
    from configs.schema.config import Config


HERE = "./workspace"
OWN_CONFIG = Path("millrace.yaml")  # in the working directory


@dataclass(frozen=True)
class RunOptions:
    """The workspace, the config file over base.yaml, and the single settings over both."""

    store: Store
    config_file: PurePath | None = None
    overrides: Sequence[str] = ()
    named: bool = (
        False  # True: --config or MILLRACE_CONFIG names the file; False: millrace.yaml of this folder, or no file
    )

    def config(self) -> Config:
        """Return the resolved configuration. Raises ConfigError as `load_config` does."""
        from configs.load import load_config  # only when a command runs, so that `--help` is fast

        return load_config(self.config_file, self.overrides)

    def flow_settings(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the values of a flow's parameters `config_file` and `overrides`."""
        return str(self.config_file) if self.config_file else None, tuple(self.overrides)

    def arguments(self) -> list[str]:
        """Return the same as words of a command line."""
        config = ["--config", str(self.config_file)] if self.config_file else []
        settings = [word for override in self.overrides for word in ("--set", override)]
        return ["--workspace", self.store.uri, *config, *settings]


def workspace_words(store: Store) -> list[str]:
    """Return the words that name the workspace in a command; none if it is the default."""
    uri = store.uri
    return [] if uri == open_store(os.environ.get("MILLRACE_WORKSPACE", HERE)).uri else ["--workspace", uri]


def found_config() -> Path | None:
    """Return the configuration file of this folder, which counts if no option names another; None without one."""
    return OWN_CONFIG if OWN_CONFIG.is_file() else None


def existing(workspace: str) -> Store:
    """Return the store of a workspace that has spans; a mistyped name must not look like an empty workspace."""
    store = open_store(workspace)
    if not store.list("spans"):
        raise ConfigError(
            f"{store.uri} holds no span, so it is no workspace yet; check --workspace, or begin: millrace look FILE"
            f"{_above()}"
        )
    return store


def _above() -> str:
    """Return the folder above this one that has a workspace, as the end of a message; else an empty text."""
    found = next((each for each in Path.cwd().parents if (each / "workspace" / "spans").is_dir()), None)
    return f". {found} has a workspace: cd {shlex.quote(str(found))}" if found is not None else ""


def write(path: Path, data: bytes) -> None:
    """Write a file that was requested, and say so. Raises StoreError as `write_all`."""
    write_all({path: data})
    typer.echo(f"wrote {path}", err=True)


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files, none before all can be. A reader such as node_exporter gets the old file or the new one.

    Raises:
        StoreError: one can't be written; names the path.
    """
    staged: dict[Path, Path] = {}
    target = Path()
    try:
        try:
            for path, data in files.items():
                target = path.expanduser().absolute()
                staged[target] = target.with_name(f".{target.name}.{os.getpid()}.tmp")
                staged[target].write_bytes(data)
            for target, whole in staged.items():
                os.replace(whole, target)
        finally:
            for whole in staged.values():
                whole.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target} can't be written: {error.strerror or error}") from error


class Reading(NamedTuple):
    """The options as they are given, each with its help."""

    form: Annotated[
        Format | None, typer.Option("--format", help="Format of the records; default: from the file name.")
    ] = None
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV: comma, semicolon, tab or pipe; default: detected.")
    ] = None
    quote: Annotated[
        Quote | None,
        typer.Option(help='Quotes of a CSV: double (""), backslash (\\"), none (plain); default: detected.'),
    ] = None
    decimal: Annotated[str, typer.Option(help="Decimal sign of numbers in text columns, e.g. in CSV: . or ,")] = "."
    dayfirst: Annotated[bool, typer.Option("--dayfirst", help="Dates begin with the day, e.g. 20.11.2026.")] = False
    true: Annotated[str | None, typer.Option("--true", help="Further words for true, as ja,oui.")] = None
    false: Annotated[str | None, typer.Option("--false", help="More words for false, e.g. nein,non.")] = None
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Rows to read: COLUMN (has a value), or COLUMN=VALUE,VALUE. May be repeated."),
    ] = None
    lookup: Annotated[
        PurePath | None,
        typer.Option(
            "--lookup", parser=source_path, metavar="PATH", help="Another file with columns of the rows, found by --by."
        ),
    ] = None
    by: Annotated[str | None, typer.Option("--by", help="Column that the rows and the file of --lookup share.")] = None
    explode: Annotated[
        str | None, typer.Option(help="Columns with lists of ids, a row for each id: clicked, or clicked,shown.")
    ] = None

    @property
    def shaping(self) -> Shaping:
        """The rows of a record. Raises ConfigError: an option is not understood, or one of two is missing."""
        if (self.lookup is None) != (self.by is None):
            raise ConfigError("--lookup FILE and --by COLUMN belong together: give both, or none")
        lookup = None if self.lookup is None or self.by is None else Lookup(self.lookup, self.by)
        return Shaping(parse_explode(self.explode), lookup, parse_only(self.only or ()))

    @property
    def csv(self) -> CsvOptions:
        """The delimiter and the quotes. Raises ConfigError: the delimiter is not understood."""
        return CsvOptions(None if self.delimiter is None else parse_delimiter(self.delimiter), self.quote)

    @property
    def spelling(self) -> Spelling:
        """The spelling of numbers, dates and booleans. Raises ConfigError: an option is not understood."""
        return parse_spelling(self.decimal, self.dayfirst, self.true, self.false)


DETECTED = Reading()  # no option is given


def spans(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the spans of a workspace that is a folder; of a bucket none, which would take too long."""
    folder = Path(ctx.params.get("workspace") or "workspace").expanduser() / "spans"
    return sorted(each.name for each in folder.glob(f"{incomplete}*")) if folder.is_dir() else []


def assignments(incomplete: str) -> list[str]:
    """Return the settings that begin so, as in `train.epochs=`."""
    return [f"{key}=" for key in _keys(incomplete)]


def setting_keys(incomplete: str) -> list[str]:
    """Return the keys that begin so, as in `train.epochs`."""
    return list(_keys(incomplete))


def _keys(incomplete: str) -> Iterator[str]:
    from configs.keys import EACH, NAME, all_keys  # not for `--help`

    for key in all_keys(None):
        if key.path.startswith(incomplete) and not key.is_section and EACH not in key.path and NAME not in key.path:
            yield key.path


_ABSENT = {  # options that people look for
    ("refresh", "--dry-run"): "refresh has no dry run; millrace freshness shows the items and spans that wait for one",
    ("rollback", "--release"): "name the release with --to",
    ("look", "--source"): "name the file alone: millrace look FILE",
    ("init", "--source"): "name the log alone: millrace init LOG",
    ("ingest", "--file"): "name rows with --source, or an item feed with --items",
    ("ingest", "--input"): "name rows with --source, or an item feed with --items",
}
_VALUES = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "write a whole number",
    "Input should be a valid number, unable to parse string as a number": "write a number",
    "Input should be greater than or equal to ": "write at least ",
    "Input should be less than or equal to ": "write at most ",
}
_CHOICES = re.compile(r"'([^']*)' is not one of (.*)")
_QUOTED = re.compile(r"'([^']*)'")
_NUMBERS = ("--to", "--release", "-k")  # options that take one, the likeliest first
_TEXT = "text"  # argument


def absent(command: str, typed: Sequence[str], options: Collection[str]) -> str | None:
    """Return the answer to a word that a command does not take, and that people look for; None if none was typed.

    Args:
        typed: all words after the command.
        options: the command's options, as in `--span`.
    """
    for word in typed:
        option, _, value = word.partition("=")
        if (answer := _ABSENT.get((command, option))) is not None:
            return answer
        if option.startswith("--") and option not in options and "--set" in options:
            key = _setting(option.removeprefix("--").replace("-", "_"))
            if key is not None:
                return f"{option} is no option; did you mean --set {key}={value or 'VALUE'}?"
    if command == "ingest" and typed and not typed[0].startswith("-") and Path(typed[0]).exists():
        return (
            f"name rows with --source {typed[0]}, or an item feed with --items {typed[0]}; millrace look {typed[0]} "
            "prints the whole command"
        )
    return None


def _setting(name: str) -> str | None:
    """Return the only key of the settings whose last word is a name, as train.epochs of epochs."""
    from configs.keys import EACH, NAME, all_keys  # only for an option that the command does not have

    found = [each.path for each in all_keys(None) if each.path.rpartition(".")[2] == name and not each.is_section]
    return found[0] if len(found) == 1 and EACH not in found[0] and NAME not in found[0] else None


def refusal(words: Sequence[str], typed: Sequence[str], options: Collection[str], arguments: Collection[str]) -> str:
    """Return the message about words that are too many.

    Args:
        words: the words that no parameter took.
        typed: all words after the command.
        options: the command's options, as in `--span`.
        arguments: the names of its arguments.
    """
    said = masked(" ".join(words))
    extra = f"{'These words belong' if len(words) > 1 else 'This word belongs'} to no option: {said}"
    meant = "put a text of several words in quotes" if _TEXT in arguments else _meant(words[0], typed, options)
    return f"{extra}; {meant}" if meant else extra


def plain_value(said: str) -> str:
    """Return the library's sentence about a wrong value of an option in plain words, with the nearest choice."""
    for wrong, right in _VALUES.items():
        said = said.replace(wrong, right)
    if found := _CHOICES.fullmatch(said):
        close = difflib.get_close_matches(found[1], _QUOTED.findall(found[2]), n=1)
        return f"{said.rstrip('.')}{f'; did you mean {close[0]}?' if close else ''}"
    return said


def _meant(word: str, typed: Sequence[str], options: Collection[str]) -> str | None:
    place = typed.index(word) if word in typed else 0
    if place > 1 and typed[place - 2] == "--set" and "=" not in typed[place - 1]:
        return f"did you mean --set {typed[place - 1]}={word}?"
    setting = typed[place - 1] if place and typed[place - 2] == "--set" else ""
    if any(setting.count(opened) > setting.count(closed) for opened, closed in ("[]", "{}")):
        return f"put the whole setting in quotes, as in --set '{setting.partition('=')[0]}=[...]'"
    if Path(word).exists():
        return f"one file or one folder is read; to read several files, name their folder: {Path(word).parent}"
    if "=" in word and "--set" in options:
        return f"did you mean --set {word}?"
    if f"--{word}" in options:
        return f"did you mean --{word}?"
    if "--span" in options and _is_span(word):
        return f"did you mean --span {word}?"
    if word.isdecimal() and (takes := next((option for option in _NUMBERS if option in options), None)):
        return f"did you mean {takes} {word}?"
    if "--reason" in options:
        return f"did you mean --reason {word!r}?"
    return None


def _is_span(word: str) -> bool:
    try:
        kind_of(word)
    except ConfigError:
        return False
    return True
