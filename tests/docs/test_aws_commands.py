"""Every `aws` command of docs/aws.md is one that the AWS CLI takes: options, their values, what must be given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cloud.cli import Command, commands, complaints
from tests.support.cloud.template import template

PAGE = Path(__file__).resolve().parents[2] / "docs/aws.md"
FOUND = list(commands(PAGE.read_text(encoding="utf-8")))


@pytest.mark.shows("template")
@pytest.mark.parametrize("command", FOUND, ids=lambda command: " ".join([command.service, *command.words]))
def test_the_cli_takes_the_command(command: Command) -> None:
    assert complaints(command) == []


def test_all_commands_are_found() -> None:
    assert len(FOUND) == len(re.findall(r"(?<![\w/.-])aws (?=[a-z0-9-]+ [a-z])", PAGE.read_text(encoding="utf-8")))


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
    text = PAGE.read_text(encoding="utf-8")
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
