"""Read YAML files that people write. A duplicate key, or a file that is too long, is an error."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from configs.bucket_files import object_bytes
from tasks.foundation.errors import ConfigError
from tasks.foundation.s3_path import S3Path

LONGEST = 2**18  # characters of a file, aliases expanded
DEEPEST = 50  # nesting levels of lists and keys, aliases expanded
_NUMBER_BITS = 64
_SURPRISE = re.compile(r"[-+]?(?:[0-9_]+(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|0[0-7_]+)")  # to base 60: 1:30; to base 8: 010
_UTF8_BYTES = 4  # at most, of a character


def read_yaml_file(path: PurePath, label: str = "") -> Any:
    """Return the content of a YAML file, here or in a bucket.

    Args:
        label: begins the error messages, for example with the key of the file.

    Raises:
        ConfigError: the file doesn't exist, or `read_yaml` can't read it.
        StoreError: the bucket of an `S3Path` gave no answer.
    """
    try:
        return read_yaml(_text(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{label}{path}: no such file") from error
    except ConfigError as error:  # a bucket names the object
        raise ConfigError(f"{label}{error}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{label}{path}: not readable as YAML: {fault_of(error)}") from error


def fault_of(error: Exception) -> str:
    """Return an error of reading YAML on one line, with the line and the column of the text."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error)
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text, in bounded time and memory.

    Raises:
        yaml.YAMLError: invalid YAML, a duplicate key, or too long, too deep or too large; names the position.
    """
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"more than {LONGEST:,} characters")
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        if at is not None and text[at.index : at.index + 1] == "\t":
            error.problem = "a tab stands where YAML wants blanks"
        elif at is not None and at.index >= len(text):  # libyaml says the line below the last one
            above, newline, last = text.rstrip().rpartition("\n")
            line = above.count("\n") + len(newline)
            error.problem_mark = yaml.Mark(at.name, at.index, line, len(last), None, 0)
            error.problem = f"{error.context}: {error.problem}" if error.context else error.problem
        raise


def lines_of_keys(path: PurePath) -> dict[tuple[str, ...], int]:
    """Return the line, from 1, of each key in a YAML file that `read_yaml_file` has read."""
    return dict(_lines(yaml.compose(_text(path), _Loader), ()))


def _text(path: PurePath) -> str:
    """Return a file's text, or the first LONGEST + 1 characters of a longer one."""
    if isinstance(path, S3Path):
        return object_bytes(path, _UTF8_BYTES * LONGEST + 1).decode()
    with Path(path).open(encoding="utf-8") as file:
        return file.read(LONGEST + 1)


def _lines(node: Node | None, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            path = (*above, str(key.value))
            yield path, key.start_mark.line + 1
            yield from _lines(value, path)


class _Loader(Composer, yaml.CSafeLoader):
    """SafeLoader with limits: plain SafeLoader keeps the last duplicate key and expands aliases without end.

    libyaml parses, which makes a load four times as fast; its own composer, that of CSafeLoader, has no limits.
    """

    _depth = 0
    _left = LONGEST

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self._depth += 1
        if self._depth > DEEPEST:
            event = self.peek_event()
            raise ComposerError(None, None, f"more than {DEEPEST} levels", event and event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_document(self, node: Node) -> Any:
        self._check(node, 1)
        return super().construct_document(node)

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError) as error:  # as for 2026-13-45, or `!!bool perhaps`
            raise ConstructorError(None, None, f"{node.value!r:.50} is none of {node.tag}", node.start_mark) from error
        if isinstance(value, int | float) and _SURPRISE.fullmatch(str(node.value)):
            said = f"YAML reads {node.value} as {value}; write {value} if that is meant, else put it in quotes"
            raise ConstructorError(None, None, said, node.start_mark)
        if isinstance(value, int) and value.bit_length() > _NUMBER_BITS:
            raise ConstructorError(None, None, f"a number of more than {_NUMBER_BITS} bits", node.start_mark)
        return value

    def _check(self, node: Node, depth: int) -> None:
        """Raise ConstructorError for a duplicate key, and for aliases that expand too far."""
        self._left -= 1 + len(node.value)  # characters, or parts
        if depth > DEEPEST or self._left < 0:
            what = f"{DEEPEST} levels or {LONGEST:,} characters"
            raise ConstructorError(None, None, f"aliases make more than {what}", node.start_mark)
        if isinstance(node, SequenceNode):
            for part in node.value:
                self._check(part, depth + 1)
        elif isinstance(node, MappingNode):
            keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, ScalarNode))
            if twice := next((key for (_, key), count in keys.items() if count > 1), None):
                raise ConstructorError(None, None, f"the key {twice!r} is there twice", node.start_mark)
            for pair in node.value:
                for part in pair:
                    self._check(part, depth + 1)
