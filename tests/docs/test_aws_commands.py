"""Every `aws` command of docs/aws.md is one that the AWS CLI takes: options, their values, what must be given.

The CLI makes its options from botocore's models of the services, so those are asked; the few commands that it adds are
in a table here. The CLI itself is not installed: each of its releases pins one botocore exactly, and version 2, for
which the page is, is not on the package index.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session
import jmespath
import pytest
from botocore import xform_name
from botocore.validate import ParamValidator

from tests.support.cloud.requests import not_listed
from tests.support.cloud.template import template

PAGE = Path(__file__).resolve().parents[2] / "docs/aws.md"
SESSION: Any = botocore.session.get_session()
GLOBAL = {"region", "output", "query"}
# Commands of the CLI's own, with those of their options that the page may use.
ADDED = {
    ("cloudformation", "deploy"): {"stack-name", "template-file", "s3-bucket", "capabilities", "parameter-overrides"},
    ("ecr", "get-login-password"): set(),
    ("s3", "mb"): set(),
    ("s3", "rb"): {"force"},
}
FILLED_IN = {"RunInstances": {"MinCount": 1, "MaxCount": 1}}  # by the CLI, where the option is not given
LONGEST_SECONDS = 20 * 60  # the driver is compiled on a small machine, and its disk is copied
SHELL = set("();<>|&")


class Command(NamedTuple):
    """`aws SERVICE WORDS --option VALUES`; `patient` where it is tried three times."""

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
            at = next((number for number, word in enumerate(own) if word.startswith("--")), len(own))
            options: dict[str, list[str]] = {}
            values: list[str] = []
            for word in own[at:]:
                if word.startswith("--"):
                    values = options[word.removeprefix("--")] = []
                else:
                    values.append(word)
            yield Command(own[0], tuple(own[1:at]), options, words[start - 1 : start] == ["patiently"])


def complaints(command: Command) -> list[str]:
    """What the CLI would have against a command."""
    service, words, options = command.service, command.words, command.options
    for query in options.get("query", ()):
        jmespath.compile(query)
    given = {name: values for name, values in options.items() if name not in GLOBAL}
    if (service, words[0]) in ADDED:
        return [f"no option {name}" for name in given if name not in ADDED[service, words[0]]]
    model = SESSION.get_service_model(service)
    if words[0] == "wait":
        waiters = SESSION.get_waiter_model(service)
        name = next(name for name in waiters.waiter_names if xform_name(name, "-") == words[1])
        waiter = waiters.get_waiter(name)
        seconds = waiter.delay * waiter.max_attempts * (3 if command.patient else 1)
        late = [f"gives up after {seconds} s"] if seconds < LONGEST_SECONDS else []
        return late + misuses(model.operation_model(waiter.operation), given)
    operation = next((name for name in model.operation_names if xform_name(name, "-") == words[0]), None)
    return [f"{service} has no {words[0]}"] if operation is None else misuses(model.operation_model(operation), given)


def misuses(operation: Any, given: dict[str, list[str]]) -> list[str]:
    shape = operation.input_shape
    if shape is None:
        return [f"no option {name}" for name in given]
    members = {xform_name(name, "-"): name for name in shape.members}
    if unknown := given.keys() - members.keys() - {name for name in given if name.startswith("no-")}:
        return [f"no option {name}" for name in sorted(unknown)]
    request = {members[name]: read(values, shape.members[members[name]]) for name, values in given.items()}
    request = FILLED_IN.get(operation.name, {}) | request
    report = ParamValidator().validate(request, shape)
    return [report.generate_report()] * report.has_errors() + not_listed(request, shape)


def read(values: list[str], shape: Any) -> Any:
    """The value of an option, in the CLI's short form: `Key=value,Key={Key=value}`."""
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
    return int(value) if shape.type_name in ("integer", "long", "double") and value.isdecimal() else value


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


FOUND = list(commands(PAGE.read_text()))


@pytest.mark.shows("template")
@pytest.mark.parametrize("command", FOUND, ids=lambda command: " ".join([command.service, *command.words]))
def test_the_cli_takes_the_command(command: Command) -> None:
    assert complaints(command) == []


def test_all_commands_are_found() -> None:
    assert len(FOUND) == len(re.findall(r"(?<![\w/.-])aws (?=[a-z0-9-]+ [a-z])", PAGE.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        "aws ec2 run-instances --instance-typ t3.medium",
        "aws ec2 run-instances --metadata-options HttpToken=required",
        "aws ec2 run-instances --metadata-options HttpTokens=always",
        "aws ec2 create-image --name x",
        "aws ec2 wait instance-stopped --instance-ids i-1",
        "aws batch list-job --job-queue q",
        "aws cloudformation deploy --stack x",
    ],
)
def test_a_wrong_command_is_found(wrong: str) -> None:
    (command,) = commands(f"```\n{wrong}\n```\n")
    assert complaints(command)


def test_the_parameters_of_the_stack_are_there() -> None:
    text = PAGE.read_text()
    known = template()["Parameters"]
    named = dict(re.findall(r"\b([A-Z][a-z]+[A-Z][A-Za-z]+)=([\w.$-]+)", text))
    assert {"AcceleratorAmi", "ImageTag", "GpuType"} <= named.keys()
    of_stack = {
        name: value for name, value in named.items() if name in known or name[:3] in ("Acc", "Inf", "Gpu", "Cap")
    }
    assert of_stack.keys() <= known.keys()
    assert {
        name: value for name, value in of_stack.items() if value not in known[name].get("AllowedValues", [value])
    } == {}
