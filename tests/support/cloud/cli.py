"""Commands of the AWS CLI, read and checked by botocore's models of the services, from which the CLI makes its options.

The few commands that it adds are in a table. The CLI itself is not installed: each of its releases pins one botocore
exactly, and version 2, for which docs/aws.md is, is not on the package index.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session
import jmespath
from botocore import xform_name
from botocore.validate import ParamValidator

from tests.support.cloud.requests import not_listed

SESSION: Any = botocore.session.get_session()
GLOBAL = {"region", "output", "query"}
PAGED = {"max-items"}  # of the CLI's own paging
# Commands that only the CLI has, no API, each with the options that the page may use, as `s3 cp`.
ADDED = {
    ("cloudformation", "deploy"): {"stack-name", "template-file", "s3-bucket", "capabilities", "parameter-overrides"},
    ("ecr", "get-login-password"): set[str](),
    ("s3", "cp"): set[str](),
    ("s3", "mb"): set[str](),
    ("s3", "rb"): {"force"},
}
SERVICES = {"s3api": "s3"}  # by the CLI's name
FILLED_IN = {"RunInstances": {"MinCount": 1, "MaxCount": 1}}  # by the CLI, if the option is not given
LONGEST_SECONDS = 20 * 60  # the driver is compiled on a small machine, and its disk is copied
SHELL = set("();<>|&")


class Command(NamedTuple):
    """One call, `aws SERVICE WORDS --option VALUES`; `patient`: it is tried up to three times."""

    service: str
    words: tuple[str, ...]
    options: dict[str, list[str]]
    patient: bool


def blocks(text: str) -> str:
    return "".join(re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.M | re.S))


def commands(text: str) -> Iterator[Command]:
    """The commands in the code blocks and in the sentences; what the shell would put in is the word PUT."""
    inline = [" ".join(one.split()) for one in re.findall(r"(?<!`)`(aws [^`]+)`", text)]
    for line in [*blocks(text).replace("\\\n", " ").splitlines(), *inline]:
        lexer = shlex.shlex(re.sub(r"\$\(output \w+\)", "PUT", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = [*lexer]
        for start in (number for number, word in enumerate(words) if word == "aws"):
            own = [*itertools.takewhile(lambda word: not set(word) <= SHELL, words[start + 1 :])]
            own = [re.sub(r"\$\w+", "PUT", word) for word in own]
            yield command(own, patient=words[start - 1 : start] == ["patiently"])


def command(words: list[str], *, patient: bool = False) -> Command:
    """The words after `aws`, read."""
    at = next((number for number, word in enumerate(words) if word.startswith("--")), len(words))
    options: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words[at:]:
        if word.startswith("--"):
            values = options[word.removeprefix("--")] = []
        else:
            values.append(word)
    positional = tuple(words[1:at])
    if (words[0], words[1]) == ("s3", "rb") and "force" in options:  # a flag that may stand before the address
        positional, options = (*positional, *options["force"]), options | {"force": []}
    return Command(words[0], positional, options, patient)


def complaints(one: Command) -> list[str]:
    """What the CLI would have against a command."""
    service, words, options = one.service, one.words, one.options
    for query in options.get("query", ()):
        jmespath.compile(query)
    given = {name: values for name, values in options.items() if name not in GLOBAL}
    if (service, words[0]) in ADDED:
        return [f"no option {name}" for name in given if name not in ADDED[service, words[0]]]
    if words[0] == "wait":
        waiter = waiter_of(one)
        seconds = waiter.delay * waiter.max_attempts * (3 if one.patient else 1)
        late = [f"gives up after {seconds} s"] if seconds < LONGEST_SECONDS else []
        return late + misuses(model(service).operation_model(waiter.operation), given)
    operation = operation_of(one)
    return [f"{service} has no {words[0]}"] if operation is None else misuses(operation, given)


def model(service: str) -> Any:
    return SESSION.get_service_model(SERVICES.get(service, service))


def operation_of(one: Command) -> Any:
    """The operation's model; None if the service has no such operation."""
    found = model(one.service)
    name = next((name for name in found.operation_names if xform_name(name, "-") == one.words[0]), None)
    return None if name is None else found.operation_model(name)


def waiter_of(one: Command) -> Any:
    waiters = SESSION.get_waiter_model(SERVICES.get(one.service, one.service))
    return waiters.get_waiter(next(name for name in waiters.waiter_names if xform_name(name, "-") == one.words[1]))


def misuses(operation: Any, given: dict[str, list[str]]) -> list[str]:
    shape = operation.input_shape
    if shape is None:
        return [f"no option {name}" for name in given]
    known = {xform_name(name, "-") for name in shape.members} | PAGED
    if unknown := given.keys() - known - {name for name in given if name.startswith("no-")}:
        return [f"no option {name}" for name in sorted(unknown)]
    request = request_of(operation, given)
    report = ParamValidator().validate(request, shape)
    return [report.generate_report()] * report.has_errors() + not_listed(request, shape)


def request_of(operation: Any, given: dict[str, list[str]], folder: Path | None = None) -> dict[str, Any]:
    """The request of an operation; files of `file://` are below `folder`, without one they are made up."""
    shape = operation.input_shape
    if shape is None:
        return {}
    members = {xform_name(name, "-"): name for name in shape.members}
    request = {
        members[name]: read(values, shape.members[members[name]], folder)
        for name, values in given.items()
        if name in members
    }
    return FILLED_IN.get(operation.name, {}) | request


def read(values: list[str], shape: Any, folder: Path | None = None) -> Any:
    """The value of an option, in the CLI's short form: `Key=value,Key={Key=value}`, or in a file."""
    if values and values[0].startswith("file://"):
        if folder is None:
            return least(shape)
        text = (folder / values[0].removeprefix("file://")).read_text()
        return text if shape.type_name in ("string", "blob") else json.loads(text)
    if shape.type_name == "list":
        return [read([value], shape.member) for value in values]
    if not values:
        return True
    (value,) = values
    if shape.type_name == "structure":
        found: dict[str, Any] = {}
        for key, each in pairs(value):
            member = shape.members.get(key)
            found[key] = read(each if member.type_name == "list" else [",".join(each)], member) if member else each
        return found
    if shape.type_name == "map":
        return {key: each if shape.value.type_name == "list" else ",".join(each) for key, each in pairs(value)}
    if shape.type_name == "boolean":
        return {"true": True, "false": False}.get(value, value)
    if shape.type_name in ("double", "float"):
        return float(value)
    return int(value) if shape.type_name in ("integer", "long") and value.isdecimal() else value


def least(shape: Any) -> Any:
    """The smallest value of a shape that botocore takes."""
    if shape.type_name == "structure":
        return {name: least(shape.members[name]) for name in shape.required_members}
    return {"list": [], "map": {}}.get(shape.type_name, "text")


def pairs(text: str) -> Iterator[tuple[str, list[str]]]:
    """Keys and values of the short form; a part without `=` goes on with the values of the key before it."""
    text = text[1:-1] if text.startswith("{") else text
    found: list[tuple[str, list[str]]] = []
    for part in re.findall(r"(?:[^,{]|\{[^}]*\})+", text):
        key, equals, value = part.partition("=")
        if equals:
            found.append((key, [value]))
        else:
            found[-1][1].append(part)
    return iter(found)
