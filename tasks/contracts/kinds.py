"""A kind of file in the workspace. All keys are built, matched and listed here, never by hand.

The kinds themselves are in tasks/contracts/workspace.py. Nothing here reads or writes.
"""

import dataclasses
import enum
import re
from functools import cached_property
from typing import Any, Protocol

_FIELD = re.compile(r"\{(\w+)(?::(\w+))?\}")
_RUN = "runs/{run}"  # also stands for the folder of a refresh or a publication

REFRESH = "refresh-"  # prefix of a refresh's run key
PUBLICATION = "publish-"  # prefix of a publication's run key
ROOTS = ("runs", "refreshes", "publications")
LINEAGES = "lineages"


def is_refresh(run_key: str) -> bool:
    """Return True for the key of a refresh."""
    return run_key.startswith(REFRESH)


def run_folder(run_key: str) -> str:
    """Return the folder of a run, a refresh or a publication."""
    if is_refresh(run_key):
        return f"refreshes/{run_key}"
    return f"publications/{run_key}" if run_key.startswith(PUBLICATION) else f"runs/{run_key}"


def run_of(key: str) -> str:
    """Return the run of a key below its folder: `4f2a` of `runs/4f2a/plan.json`."""
    return _second_part(key, ROOTS)


def lineage_of(key: str) -> str:
    """Return the lineage of a key below its folder: `main` of `lineages/main/step-00000060/state.json`."""
    return _second_part(key, (LINEAGES,))


def lineage_folder(lineage: str) -> str:
    """Return the folder of a lineage's checkpoints and records."""
    return f"{LINEAGES}/{lineage}"


def lineage_lock(lineage: str, work: str = "run") -> str:
    """Return the name of a lineage's lock for runs, or for other `work`: `refresh`."""
    return f"{LINEAGES}/{lineage}.{work}"


def _second_part(key: str, roots: tuple[str, ...]) -> str:
    root, _, rest = key.partition("/")
    if root not in roots or not rest:
        raise ValueError(f"{key} is not below {' or '.join(roots)}")
    return rest.partition("/")[0]


class Kept(enum.StrEnum):
    """The retention of a file."""

    always = "always"
    reached = "while a kept release, a head or an unfinished run needs it"  # else `prune` deletes it
    shown = "while its run is unfinished, or kept for a head or a release"  # else `prune` deletes it
    done = "until it is done with"  # its writer deletes it, or nothing needs it


class OfAttempt(Protocol):
    """One attempt of one stage: a spec, or a record of the ledger."""

    @property
    def run_key(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def attempt(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of file, or of folder if its pattern ends with a slash.

    `runs/{run}` in a pattern stands for the folder of any run, also of a refresh or a publication. A field is a
    part of a key without slashes; `{number:d}` is a whole number, and `{lock:path}` may have slashes.
    """

    name: str  # for people
    pattern: str
    record: str  # the class of its JSON; for other files and folders, their content in a word or two
    writer: str
    complete: str  # the condition on which a reader may use it
    kept: Kept
    last_writer: str = ""  # the reason why a later write may replace an earlier one; empty: it is created or swapped

    @property
    def is_folder(self) -> bool:
        return self.pattern.endswith("/")

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of the pattern."""
        return tuple(name for name, _ in _FIELD.findall(self.pattern))

    def key(self, **fields: str | int) -> str:
        """Return the key of one file, or of one folder without a slash at its end.

        Raises:
            KeyError: a field of the pattern is missing.
        """
        pattern = self.pattern.rstrip("/")
        if pattern.startswith(_RUN):
            pattern = run_folder(str(fields["run"])) + pattern.removeprefix(_RUN)
        return pattern.replace(":path", "").format(**fields)

    def of(self, work: OfAttempt, **fields: str | int) -> str:
        """Return the key of the file that belongs to an attempt, or to its stage or run."""
        return self.key(run=work.run_key, stage=work.stage, attempt=work.attempt, **fields)

    def within(self, **fields: str | int) -> str:
        """Return the folder of all files of this kind with these fields, for example `lineages/main/skipped`."""
        unknown = next((found for found in _FIELD.finditer(self.pattern) if found[1] not in fields), None)
        begin = self.pattern.rstrip("/") if unknown is None else self.pattern[: unknown.start()]
        return dataclasses.replace(self, pattern=begin.rpartition("/")[0]).key(**fields)

    def match(self, key: str) -> dict[str, Any] | None:
        """Return the fields of a key of this kind, or of a file in a folder of this kind; None for other kinds."""
        found = self._regex.match(key)
        if found is None:
            return None
        fields: dict[str, Any] = {
            name: int(value) if name in self._numbers else value for name, value in found.groupdict().items()
        }
        if self.pattern.startswith(_RUN) and not key.startswith(f"{run_folder(fields['run'])}/"):
            return None
        return fields

    def folder_of(self, key: str) -> str | None:
        """Return the folder of this kind that has the file, or the folder of a file of this kind; None for others."""
        fields = self.match(key)
        return None if fields is None else self.key(**fields) if self.is_folder else key.rpartition("/")[0]

    def fields(self, key: str) -> dict[str, Any]:
        """Return the fields of a key of this kind. Raises ValueError: the key is of another kind."""
        found = self.match(key)
        if found is None:
            raise ValueError(f"{key} is no key of a {self.name}, as in {self.pattern}")
        return found

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(name for name, how in _FIELD.findall(self.pattern) if how.endswith("d"))

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        pattern, begin = self.pattern, ""
        if pattern.startswith(_RUN):
            pattern, begin = pattern.removeprefix(_RUN), rf"(?:{'|'.join(ROOTS)})/(?P<run>[^/]+)"
        parts, at = [begin], 0
        for field in _FIELD.finditer(pattern):
            value = r"\d+" if field[1] in self._numbers else ".+" if field[2] == "path" else "[^/]+"
            parts += [re.escape(pattern[at : field.start()]), f"(?P<{field[1]}>{value})"]
            at = field.end()
        return re.compile("".join([*parts, re.escape(pattern[at:]), "." if self.is_folder else "$"]))
