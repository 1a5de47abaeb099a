"""docs/configuration.md, written whole from the keys of configs/keys.py. `make docs` rewrites it.

It has every key with its type, its default in base.yaml, its meaning, and a star if it does not decide a run's result.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from configs.keys import NO_DEFAULT, Key, keys_below, nested, records, summary, with_several_places
from configs.load import load_config
from configs.schema.config import Config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
_HEAD = """# Configuration

<!-- Written by `make docs` from configs/schema and configs/base.yaml; change the descriptions there. -->

Settings are `configs/base.yaml`, then one file, then each `--set`, as in `--set train.epochs=2`. The file is that of
`--config`, else of `MILLRACE_CONFIG`, else `millrace.yaml` in the working directory. It holds what differs, and may
begin with `extends: trainium.yaml`, a file beside it. In a bucket, `--config s3://bucket/settings/team.yaml`, it is
read once at the start of a command or flow run, and extends a file of the installed `configs/`, or one beside it. An
unknown key is refused, and the nearest known one is named. `millrace config` shows this page in a terminal, with each
value in force and the file and line that sets it, as in `millrace config train --config configs/demo.yaml`. Each run
keeps its resolved settings in `config.yaml`.

An editor with a YAML language server completes keys and marks wrong ones in a file whose first line names the schema:
`# yaml-language-server: $schema=` and the path of `configs/millrace.schema.json` from that file.

Keys are written with dots. `[]` stands for each entry of a list, NAME for a name that you choose. A default of –: the
key is a section, or has no default and must be given if its section is. A key with a star, as `retry.attempts`*, can be
changed at any time. All others are part of a run's key: with another value it is another run.
"""


def page() -> str:
    """Return the whole page: one table for each top-level section, then the records with several places."""
    apart = with_several_places()
    keys = list(keys_below(Config, load_config().tree(), apart=apart))
    titles = {field.alias or name: kinds for name, field in Config.model_fields.items()
              if (kinds := records(field.annotation))}  # fmt: skip
    plain = [key for key in keys if key.path.partition(".")[0] not in titles]
    sections = [
        f"## {title}\n\n{summary(kinds[0])}\n\n{_table([key for key in keys if key.path.startswith(f'{title}.')])}"
        for title, kinds in titles.items()
    ]
    shared = [f"## {kind.__name__}\n\n{summary(kind)}\n\n{_table(keys_below(kind), False)}" for kind in apart]
    text = "\n".join([_HEAD, f"## Top level\n\n{_table(plain)}", *sections, *shared])
    names = "|".join(kind.__name__ for kind in apart)
    return re.sub(rf"(?<=\| )((?:list of |map of )?)({names})\b", lambda m: f"{m[1]}[{m[2]}](#{m[2].lower()})", text)


def unexplained(*kinds: Any) -> list[str]:
    """Return the fields of these records, and of all records inside them, that have no description, and need one."""
    found = []
    for kind in dict.fromkeys(nested(*kinds)):
        for name, field in kind.model_fields.items():
            if not field.description and not (inspect.isclass(field.annotation) and records(field.annotation)):
                found.append(f"{kind.__name__}.{name}")
    return sorted(found)


def _table(keys: Iterable[Key], with_stars: bool = True) -> str:
    """Return a table of keys; the keys of a record with several places have no star, which depends on the place."""
    columns = ["key", "type", "default", "meaning"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for key in keys:
        star = "*" if with_stars and not key.decides else ""
        cells = [f"`{key.path}`{star}", key.type, _default(key), key.meaning]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(key: Key) -> str:
    if key.default is NO_DEFAULT or (key.is_section and isinstance(key.default, dict)):
        return "–"
    text = json.dumps(key.default, ensure_ascii=False, default=list)
    return f"`{text}`" if len(text) < 60 else "see base.yaml"
