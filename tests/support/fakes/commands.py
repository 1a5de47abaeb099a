"""The command `millrace` in a process of its own, whose workers are fakes."""

from __future__ import annotations

import os
from pathlib import Path

from infra.prefect_server import Server, client_environment
from tests.support.processes import command, forked
from tests.support.processes.command import CommandResult

SMALL = ("--set", "model.scratch.layers=1")


def run_pipeline(server: Server, workspace: Path, *arguments: str, **environment: str) -> CommandResult:
    """`millrace run` in a process of its own, with fake workers."""
    return run_command(server, workspace, "run", *arguments, **environment)


def run_command(server: Server, workspace: Path, name: str, *arguments: str, **environment: str) -> CommandResult:
    words = (name, "--workspace", str(workspace), *SMALL, *arguments)
    environment = {**os.environ, **client_environment(server), **environment}
    done = forked.module("tests.support.fakes.millrace", *words, environment=environment, seconds=120)
    return command.as_documented(done, name, *arguments)
