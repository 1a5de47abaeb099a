"""`millrace config`: every key of the configuration, with its value in force and the place that sets it."""

import json
import re
from pathlib import PurePath
from typing import Annotated, Any

import typer
from pydantic import Field

from configs.in_force import InForce, in_force
from configs.keys import EACH, NAME, NO_DEFAULT, Key, all_keys
from configs.load import BASE, check_key, load_config
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import setting_keys
from flows.presentation.model import Parts
from flows.presentation.wording import NONE
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

_NUMBERED = re.compile(r"\.\d+(?=\.|$)")
_LONGEST = 60  # characters of a default


class Setting(Record):
    """One key."""

    key: str = Field(description="key with dots; [] is each entry of a list, NAME a name that you choose")
    type: str = Field(description="type in words, with its bounds")
    required: bool = Field(description="true: no default; required if its section is given")
    default: Any = Field(description="value in base.yaml, else of the schema; null also if it is required")
    meaning: str = Field(description="meaning, with its unit")
    decides: bool = Field(description="true: another value makes another run, since it can change the model or vectors")
    value: Any = Field(description="value in force with --config and --set; null also if the key has none of its own")
    origin: str | None = Field(
        description="source of the value: file:line, an option, or `schema` (its default); null: a section, or a key "
        "in a null section, a list or a map"
    )


class ConfigOutput(Record):
    """`millrace config`."""

    config_file: str | None = Field(
        description="file over base.yaml: --config, else MILLRACE_CONFIG, else ./millrace.yaml; null: none"
    )
    settings: tuple[Setting, ...] = Field(description="keys in the order of the schema")


def config_page(output: ConfigOutput) -> Parts:
    """Yield each key with its value and origin, and below them its meaning, type and default."""
    for each in output.settings:
        value = f"{_text(each.value)}  # {each.origin}" if each.origin else NONE
        effect = "decides the result" if each.decides else "does not change the result"
        yield f"{each.key}: {value}"
        yield f"    {each.meaning}"
        yield f"    {each.type}; {_default(each)}; {effect}"


@command(config_page)
def config(
    key: Annotated[
        str | None,
        typer.Argument(
            show_default=False, autocompletion=setting_keys, help="A key or a section, as in train.epochs or train."
        ),
    ] = None,
    config_file: PurePath | None = None,
    settings: list[str] | None = None,
) -> ConfigOutput:
    """Show each key of the configuration: meaning, type, default, value in force, and the line that sets it."""
    force = in_force(config_file, settings or ())
    if key is not None:
        key = _NUMBERED.sub(EACH, key)  # as messages name an entry: publish.targets.0.kind
        check_key(key.replace(EACH, ""), "millrace config")
    found = [each for each in all_keys(load_config().tree()) if key is None or _is_in(each.path, key)]
    if not found:
        raise ConfigError(f"millrace config: no key {key!r}; millrace config prints all")
    file = str(config_file) if config_file else None
    note(f"settings: {BASE.name}{f', then {file}' if file else ' alone'}, then each --set")
    return ConfigOutput(config_file=file, settings=tuple(_setting(each, force) for each in found))


def _is_in(path: str, wanted: str) -> bool:
    """Return True if a path is the wanted key or below it; a name that the user chose stands for NAME."""
    parts, asked = path.replace(EACH, "").split("."), wanted.replace(EACH, "").split(".")
    return len(asked) <= len(parts) and all(one in (other, NAME) for one, other in zip(parts, asked, strict=False))


def _setting(key: Key, force: InForce) -> Setting:
    value, origin = force.of(key.path)
    has_own = origin is not None and not (key.is_section and isinstance(value, dict))
    return Setting(
        key=key.path,
        type=key.type,
        required=key.default is NO_DEFAULT,
        default=None if key.default is NO_DEFAULT else key.default,
        meaning=key.meaning,
        decides=key.decides,
        value=value if has_own else None,
        origin=origin if has_own else None,
    )


def _default(setting: Setting) -> str:
    text = _text(setting.default)
    if setting.required:
        return "must be given"
    return f"default {text}" if len(text) <= _LONGEST else f"default: see {BASE.name}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=list)
