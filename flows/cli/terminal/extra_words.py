"""Words of a command line that no parameter takes: the option that was probably meant."""

import difflib
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from tasks.contracts.spans import kind_of
from tasks.foundation.errors import ConfigError
from tasks.foundation.passwords import masked

_ABSENT = {  # options that people look for
    ("serve", "--host"): "serve listens on 127.0.0.1 alone, since its pages ask for no password; from another machine: "
    "ssh -L 4280:127.0.0.1:4280 THIS-MACHINE, then open http://127.0.0.1:4280",
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
