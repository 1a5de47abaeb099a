"""docs/aws.md, executed: every block in order, from an empty account to an empty account.

`aws` is answered by moto (tests/support/cloud/account.py). Stand-ins are on PATH for what can't run here, and refuse
what the real ones would: `docker` keeps images and pushes them to moto's registry, `millrace` reads its arguments with
the command's own parser, and `dnf`, `systemctl` and `openssl` know the lines of the page.
"""

from __future__ import annotations

import json
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from configs.load import load_config
from flows.cli.app import all_commands
from tests.support.cloud.account import TOKEN, Account, Refused, Reply
from tests.support.cloud.cli import blocks
from tests.support.cloud.stacks import call

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/aws.md"
CLIENT = """#!{python} -SE
import json, os, socket, sys
asked = {{"words": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "folder": os.getcwd()}}
asked["stdin"] = sys.stdin.read() if "--password-stdin" in sys.argv else ""
with socket.create_connection(("127.0.0.1", {port})) as line:
    line.sendall(json.dumps(asked).encode() + b"\\n")
    answer = json.loads(line.makefile().readline())
sys.stdout.write(answer["out"])
sys.stderr.write(answer["err"])
sys.exit(answer["code"])
"""
OBJECTS = 1_100  # more than one request deletes


class World:
    """The account, the images of Docker, and the commands that were called."""

    def __init__(self) -> None:
        self.account = Account()
        self.images: set[str] = set()
        self.containers: set[str] = set()
        self.environment: dict[str, str] = {}  # of the last one
        self.signed_in = False
        self.called: list[list[str]] = []
        self.fullest: dict[str, set[str]] = {}  # the account before its teardown

    def settings(self) -> str:
        """MILLRACE_CONFIG of the worker's container, with the bucket that a person writes there."""
        file = self.environment.get("MILLRACE_CONFIG", "")
        return file.replace("BUCKET", self.account.stacks["millrace"].outputs["BucketName"]) if file else ""

    def answer(self, words: list[str], folder: Path, stdin: str) -> Reply:
        self.called.append(words)
        if "cancel-capacity-reservation" in words:
            self.fullest = self.account.contents()
        if words[0] == "aws":
            return self.account.aws(words[1:], folder)
        try:
            return Reply(TOOLS[words[0]](self, words[1:], folder, stdin))
        except Refused as error:
            return Reply(err=f"{words[0]}: {error}\n", code=1)


def _docker(world: World, words: list[str], folder: Path, stdin: str) -> str:
    match words:
        case ["login", "--username", "AWS", "--password-stdin", registry] if ".dkr.ecr." in registry:
            if stdin.strip() != TOKEN:
                raise Refused("unauthorized")
            world.signed_in = True
        case ["build", "--platform", "linux/amd64", "-f", file, "-t", tag, *more, "."]:
            given = [each.partition("=")[0] for each in more[1::2]]
            if more[::2] != ["--build-arg"] * len(given) or not (folder / file).is_file():
                raise Refused(f"unknown option or no file {file}")
            if unknown := [each for each in given if f"ARG {each}" not in (folder / file).read_text()]:
                raise Refused(f"the Dockerfile has no ARG {unknown}")
            world.images.add(tag)
        case ["push", tag]:
            _push(world, tag)
        case ["run", "-d", *_, "prefect", "server", "start"]:
            _run(world, words, folder)
        case ["run", "-d", *_]:
            _run(world, words, folder)
        case ["exec", "-it", name, "bash"] if name in world.containers:
            pass
        case _:
            raise Refused(f"not understood: {words}")
    return ""


def _push(world: World, tag: str) -> None:
    if not world.signed_in or tag not in world.images:
        raise Refused(f"no basic auth credentials, or no image {tag}")
    repository, _, name = tag.partition("/")[2].rpartition(":")
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": {"digest": tag}})
    call("ecr", "PutImage", {"repositoryName": repository, "imageManifest": manifest, "imageTag": name})


def _run(world: World, words: list[str], folder: Path) -> None:
    (image,) = (each for each in words if ".dkr.ecr." in each)
    if not _pushed(image):
        raise Refused(f"manifest for {image} not found")
    environment = dict(
        line.split("=", 1) for line in (folder / words[words.index("--env-file") + 1]).read_text().split()
    )
    assert all(environment.values()), "a variable of the page is not set"
    world.environment = environment
    world.containers.add(words[words.index("--name") + 1])


def _pushed(image: str) -> bool:
    repository, _, tag = image.partition("/")[2].rpartition(":")
    return any(
        tag in each.get("imageTags", ())
        for each in call("ecr", "DescribeImages", {"repositoryName": repository})["imageDetails"]
    )


def _millrace(world: World, words: list[str], folder: Path, _: str) -> str:
    """Arguments are read; `ingest` writes, `run` needs definitions whose images are there."""
    known = all_commands()
    title = max((name for name in known if name.split() == words[: len(name.split())]), key=len, default="")
    if not title:
        raise Refused(f"no command {words}")
    with known[title].make_context(title, words[len(title.split()) :]) as context:
        file = context.params.get("config_file") or world.settings()
        load_config(folder / file if isinstance(file, Path) else file)
    stack = world.account.stacks.get("millrace")
    if title == "ingest" and stack is not None:
        for number in range(OBJECTS):
            call("s3", "PutObject", {"Bucket": stack.outputs["BucketName"], "Key": f"main/{number}", "Body": b"x"})
        call("s3", "DeleteObject", {"Bucket": stack.outputs["BucketName"], "Key": "main/0"})
    if title == "run" and "--dry-run" not in words:
        lost = [image for image in _images_of_definitions() if not _pushed(image)]
        if lost:
            raise Refused(f"CannotPullContainerError: {lost}")
    return ""


def _images_of_definitions() -> set[str]:
    found = call("batch", "DescribeJobDefinitions", {"status": "ACTIVE"})["jobDefinitions"]
    return {text for each in found for text in re.findall(r"'image': '([^']+)'", str(each))}


def _known(*lines: str) -> Callable[..., str]:
    def run(_: World, words: list[str], *__: Any) -> str:
        if " ".join(words) not in lines:
            raise Refused(f"not understood: {words}")
        return "0123456789abcdef\n" if words[0] == "rand" else ""

    return run


TOOLS: dict[str, Callable[..., str]] = {
    "docker": _docker,
    "millrace": _millrace,
    "dnf": _known("install -y docker"),
    "systemctl": _known("enable --now docker"),
    "openssl": _known("rand -hex 16"),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Commands of the page on PATH, in a folder with what they read."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("infra", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "team.yaml").write_text("extends: trainium.yaml\nlineage: team\n")
    with mock_aws(config={"core": {"reset_boto3_session": False}, "iam": {"load_aws_managed_policies": True}}):
        one = World()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = json.loads(self.rfile.readline())
                try:
                    reply = one.answer(asked["words"], Path(asked["folder"]), asked["stdin"])
                except Exception as error:  # a fault of the stand-in itself
                    reply = Reply(err=f"{asked['words']}: {error!r}", code=99)
                self.wfile.write(json.dumps(reply._asdict()).encode() + b"\n")

        with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
            (tmp_path / "bin").mkdir()
            for name in ("aws", *TOOLS):
                file = tmp_path / "bin" / name
                file.write_text(CLIENT.format(python=sys.executable, port=server.server_address[1]))
                file.chmod(0o755)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            yield one
            server.shutdown()


def executed(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a text as one shell; a command that fails ends it."""
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.shows("template")
def test_the_page_leads_from_an_empty_account_to_an_empty_account(world: World, tmp_path: Path) -> None:
    """Before the teardown there is something of each kind, and the page's last commands print it; then nothing."""
    before = world.account.contents()
    whole = blocks(PAGE.read_text())
    end, last = (
        whole.index("aws ec2 cancel-capacity-reservation"),
        whole.index("aws ec2 describe-capacity-reservations"),
    )
    done = executed(f"{whole[:end]}\n{whole[last:]}\necho THEN\n{whole[end:last]}\necho THEN\n{whole[last:]}", tmp_path)
    assert done.returncode == 0, f"{done.stderr}\nafter: {world.called[-1]}"
    assert {kind for kind, names in world.fullest.items() if names == before[kind]} == set()
    assert world.account.contents() == before
    on_the_way, _, nothing = done.stdout.split("THEN\n")
    kinds = [line[:3] for line in on_the_way.splitlines()[-6:]]
    assert kinds == ["cr-", kinds[1], "vol", "ami", "nat", "mil"]
    assert kinds[1].startswith("i-")
    assert nothing.split() == []
    assert world.containers == {"server", "worker"}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("cancel-capacity-reservation", "PlacementGroup: DELETE_FAILED: in use"),
        ("instance.* --instance-ids [$]HOST", r"DELETE_FAILED: i-\w+ is in it"),
        ("while versions", "BucketNotEmpty"),
        ("deploy ImageTag=", "CannotPullContainerError"),
    ],
)
def test_a_step_that_is_left_out_is_noticed(world: World, tmp_path: Path, left_out: str, said: str) -> None:
    """The check itself, of the steps that are easily forgotten."""
    lines = [line for line in blocks(PAGE.read_text()).splitlines() if not re.search(left_out, line)]
    done = executed("\n".join(lines), tmp_path)
    assert done.returncode != 0
    assert re.search(said, done.stderr)
