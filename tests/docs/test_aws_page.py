"""docs/aws.md, executed: every block in order, from an empty account to an empty account.

`aws` is answered by moto (tests/support/cloud/account.py). Stand-ins are on PATH for what can't run here, and refuse
what the real ones would: `docker` keeps images and pushes them to moto's registry, and `millrace` reads its arguments
with the command's own parser. Each machine of the Auto Scaling group boots its user data, with the same `aws` and
`docker` (tests/support/cloud/machine.py).
"""

from __future__ import annotations

import base64
import json
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from configs.load import load_config
from flows.cli.app import all_commands
from tests.support.cloud.account import TOKEN, Account, Refused, Reply
from tests.support.cloud.cli import blocks
from tests.support.cloud.machine import Machine, new_volume
from tests.support.cloud.stacks import call
from tests.support.cloud.template import ACCOUNT, REGION

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/aws.md"
CLIENT = """#!{python} -SE
import json, os, socket, sys
asked = {{"words": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "folder": os.getcwd()}}
asked["read"] = sys.stdin.read() if "--password-stdin" in sys.argv else ""
if "--env-file" in sys.argv:
    asked["read"] = open(sys.argv[sys.argv.index("--env-file") + 1]).read()
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

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.account = Account()
        self.client = ""  # the program behind `aws` and `docker`
        self.images: set[str] = set()
        self.machines: dict[str, Machine] = {}  # of the Auto Scaling group, by id, in their order
        self.containers: dict[str, dict[str, str]] = {}  # of each machine, their images
        self.environment: dict[str, str] = {}  # of the last one
        self.signed_in = False
        self.called: list[list[str]] = []
        self.fullest: dict[str, set[str]] = {}  # the account before its teardown

    def answer(self, words: list[str], folder: Path, read: str) -> Reply:
        self.called.append(words)
        if "cancel-capacity-reservation" in words:
            self.fullest = self.account.contents()
        try:
            if words[0] != "aws":
                return Reply(TOOLS[words[0]](self, words[1:], folder, read))
            reply = self.account.aws(words[1:], folder)
            if words[1:3] == ["ec2", "attach-volume"] and reply.code == 0:
                volume, machine = (words[words.index(f"--{name}-id") + 1] for name in ("volume", "instance"))
                self.machines[machine].plug(self.volume(volume))
            if words[2] in ("deploy", "start-instance-refresh"):
                self.boot()
            return reply
        except Refused as error:
            return Reply(err=f"{words[0]}: {error}\n", code=1)

    def volume(self, name: str) -> Path:
        path = self.folder / name
        return path if path.exists() else new_volume(self.folder, name)

    def boot(self) -> None:
        """Boot each machine of the group that has not booted yet."""
        groups = call("autoscaling", "DescribeAutoScalingGroups", {})["AutoScalingGroups"]
        for name in (each["InstanceId"] for group in groups for each in group["Instances"]):
            if name in self.machines:
                continue
            self.machines[name] = Machine(self.folder / name, name, aws=self.client, docker=self.client)
            self.containers[name] = {}
            asked = {"InstanceId": name, "Attribute": "userData"}
            encoded = call("ec2", "DescribeInstanceAttribute", asked)["UserData"]["Value"]
            done = self.machines[name].boot(base64.b64decode(encoded).decode())
            assert done.returncode == 0, done.stderr


def _docker(world: World, words: list[str], folder: Path, read: str) -> str:
    match words:
        case ["login", "--username", "AWS", "--password-stdin", registry] if ".dkr.ecr." in registry:
            if read.strip() != TOKEN:
                raise Refused("unauthorized")
            world.signed_in = True
        case ["build", "--platform", "linux/amd64", "-f", file, "-t", tag, *more, "."]:
            given = [each.partition("=")[0] for each in more[1::2]]
            if more[::2] != ["--build-arg"] * len(given) or not (folder / file).is_file():
                raise Refused(f"unknown option or no file {file}")
            if unknown := [each for each in given if f"ARG {each}" not in (folder / file).read_text(encoding="utf-8")]:
                raise Refused(f"the Dockerfile has no ARG {unknown}")
            world.images.add(tag)
        case ["push", tag]:
            _push(world, tag)
        case ["pull", "--quiet", image]:
            if not world.signed_in or not _pushed(image):
                raise Refused(f"manifest for {image} not found")
        case ["stop", "-t", "120", name] | ["rm", "--force", name]:
            if name not in world.containers[folder.name]:
                raise Refused(f"No such container: {name}")
        case ["run", "--detach", *_]:
            _run(world, words, folder, read)
        case ["exec", "-it", name, "bash"]:  # by hand, on the last machine
            if not world.containers or name not in [*world.containers.values()][-1]:
                raise Refused(f"No such container: {name}")
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


def _run(world: World, words: list[str], folder: Path, read: str) -> None:
    (image,) = (each for each in words if ".dkr.ecr." in each)
    if not _pushed(image):
        raise Refused(f"manifest for {image} not found")
    environment = dict(line.split("=", 1) for line in read.splitlines())
    assert all(environment.values()), "a variable is not set"
    world.environment |= environment
    world.containers[folder.name][words[words.index("--name") + 1]] = image


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
        file = context.params.get("config_file") or world.environment.get("MILLRACE_CONFIG", "")
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


TOOLS: dict[str, Callable[..., str]] = {"docker": _docker, "millrace": _millrace}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Commands of the page on PATH, in a folder with what they read."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("infra", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "team.yaml").write_text("extends: trainium.yaml\nlineage: team\n")
    with mock_aws(config={"core": {"reset_boto3_session": False}, "iam": {"load_aws_managed_policies": True}}):
        their_cluster()
        one = World(tmp_path / "machines")

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = json.loads(self.rfile.readline())
                try:
                    reply = one.answer(asked["words"], Path(asked["folder"]), asked["read"])
                except Exception as error:  # a fault of the stand-in itself
                    reply = Reply(err=f"{asked['words']}: {error!r}", code=99)
                self.wfile.write(json.dumps(reply._asdict()).encode() + b"\n")

        # With threads: while `deploy` is answered, the machines that it starts call.
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            one.client = CLIENT.format(python=sys.executable, port=server.server_address[1])
            for name in ("bin", "machines"):
                (tmp_path / name).mkdir()
            for name in ("aws", *TOOLS):
                file = tmp_path / "bin" / name
                file.write_text(one.client)
                file.chmod(0o755)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            yield one
            server.shutdown()


def their_cluster() -> None:
    """A team's cluster of Amazon EKS with the profile of its nodes, which are there before the page and after it."""
    role = call("iam", "CreateRole", {"RoleName": "shop-nodes", "AssumeRolePolicyDocument": "{}"})["Role"]
    call("iam", "CreateInstanceProfile", {"InstanceProfileName": "shop-nodes"})
    call("iam", "AddRoleToInstanceProfile", {"InstanceProfileName": "shop-nodes", "RoleName": "shop-nodes"})
    subnets = [each["SubnetId"] for each in call("ec2", "DescribeSubnets", {})["Subnets"]][:2]
    groups = [each["GroupId"] for each in call("ec2", "DescribeSecurityGroups", {})["SecurityGroups"]][:1]
    network = {"subnetIds": subnets, "securityGroupIds": groups}
    call("eks", "CreateCluster", {"name": "shop", "roleArn": role["Arn"], "resourcesVpcConfig": network})


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
    whole = blocks(PAGE.read_text(encoding="utf-8"))
    end, last = (
        whole.index("aws ec2 cancel-capacity-reservation"),
        whole.index("aws ec2 describe-capacity-reservations"),
    )
    done = executed(f"{whole[:end]}\n{whole[last:]}\necho THEN\n{whole[end:last]}\necho THEN\n{whole[last:]}", tmp_path)
    assert done.returncode == 0, f"{done.stderr}\nafter: {world.called[-1]}"
    assert {kind for kind, names in world.fullest.items() if names == before[kind]} == {"clusters"}
    assert world.fullest["stacks"] == {"millrace", "millrace-eks"}
    assert {"millrace-cpu", "millrace-eks-cpu", "millrace-eks-accelerator"} <= world.fullest["queues"]
    assert world.account.contents() == before
    on_the_way, _, nothing = done.stdout.split("THEN\n")
    kinds = [line[:3] for line in on_the_way.splitlines()[-6:]]
    assert kinds == ["cr-", kinds[1], "vol", "ami", "nat", "mil"]
    assert kinds[1].startswith("i-")
    assert nothing.split() == []
    assert [*world.containers.values()] == [
        {"server": image, "worker": image} for image in (_control("0.1.0"), _control("0.1.1"))
    ]
    first, second = (machine.state.readlink() for machine in world.machines.values())
    assert first == second, "the volume of the machine before"


def _control(tag: str) -> str:
    return f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/millrace/control:{tag}"


@pytest.mark.proof
@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("cancel-capacity-reservation", "PlacementGroup: DELETE_FAILED: in use"),
        ("^images$", "manifest for .*/control:0.1.0 not found"),
        ("while versions", "BucketNotEmpty"),
        ("deploy ImageTag=", "The instance ID 'None' does not exist"),  # no image, no orchestrator
        ("^export PROFILE", "PROFILE: unbound variable"),
        ("delete-stack --stack-name millrace-eks", "StackDeleteComplete failed"),
    ],
)
def test_a_step_that_is_left_out_is_noticed(world: World, tmp_path: Path, left_out: str, said: str) -> None:
    """The check itself, of the steps that are easily forgotten."""
    lines = [line for line in blocks(PAGE.read_text(encoding="utf-8")).splitlines() if not re.search(left_out, line)]
    done = executed("\n".join(lines), tmp_path)
    assert done.returncode != 0
    assert re.search(said, done.stderr)
