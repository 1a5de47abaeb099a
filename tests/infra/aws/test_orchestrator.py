"""The orchestrator's machine: its part of the template, and its user data, run with stand-ins for AWS and Docker."""

from __future__ import annotations

import base64
import fnmatch
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.in_template import SCRIPT
from tests.infra.aws.test_organisation import KEY
from tests.infra.aws.test_template import listed, plain, statements
from tests.support.cloud.machine import Machine, new_volume
from tests.support.cloud.requests import problems, requests
from tests.support.cloud.template import flat, made, template

ON = {"ImageTag": "0.1.0"}
OWN = {"VpcId": "vpc-0123", "PrivateSubnetId": "subnet-0123", "PrivateSubnetZone": "us-east-1c"}
POSTGRES = {
    "DatabaseUrl": "postgresql://millrace@db.internal:5433/prefect",
    "DatabaseSecret": "team/database",
    "DatabaseCidr": "10.0.0.0/16",
}
KINDS = ("AWS::AutoScaling::AutoScalingGroup", "AWS::EC2::Volume", "AWS::SecretsManager::Secret")
PASSWORD, TOKEN = "geheim", "token-of-the-registry"
VOLUME = "vol-0123456789abcdef0"
BEFORE = "i-00000000000000001"  # the machine that has the volume

# `holders/VOLUME` names the machine that has a volume, and the number of calls until it gives it up.
AWS = """#!/bin/bash
set -eu
cd {folder}
echo "aws $*" >> calls
case "$1 $2" in
"ec2 attach-volume")
  read -r holder tries < {cloud}/holders/"$4"
  if [ "$holder" != - ] && [ "$tries" -gt 0 ]; then
    echo "$holder $((tries - 1))" > {cloud}/holders/"$4"
    echo "VolumeInUse: $4 is already attached to an instance" >&2
    exit 254
  fi
  echo "$6 1000" > {cloud}/holders/"$4"
  echo "{cloud}/$4 ${{4/-/}}" >> disks ;;
"secretsmanager get-secret-value") cat "{cloud}/secrets/${{4//\\//_}}" ;;
"ecr get-login-password") echo {token} ;;
*) echo "not understood: $*" >&2; exit 252 ;;
esac
"""
# Containers are files: the call, and beside it the variables.
DOCKER = """#!/bin/bash
set -eu
cd {folder}
echo "docker $*" >> calls
mkdir -p containers
case "$1" in
login) [ "$(cat)" = {token} ] && touch signed-in ;;
pull) [ -e signed-in ] ;;
stop) [ -e "containers/$4" ] ;;
rm) rm "containers/$3" "containers/$3.env" ;;
run)
  name=$(grep -o -- "--name [a-z]*" <<< "$*")
  name=${{name#--name }}
  [ ! -e "containers/$name" ] || {{ echo "Conflict: the name $name is taken" >&2; exit 125; }}
  source=$(grep -oP "type=bind,src=\\K[^,]*" <<< "$*" || true)
  [ -z "$source" ] || [ -d "$source" ] || {{ echo "bind source path does not exist: $source" >&2; exit 125; }}
  cat "$(grep -oP -- "--env-file \\K\\S+" <<< "$*")" > "containers/$name.env"
  echo "$*" > "containers/$name" ;;
*) echo "not understood: $*" >&2; exit 64 ;;
esac
"""


def user_data(**parameters: str) -> str:
    """The machine's script, of a stack whose volume is VOLUME."""
    data = made("AWS::EC2::LaunchTemplate", **ON, **parameters)["OrchestratorTemplate"]["LaunchTemplateData"]
    return base64.b64decode(data["UserData"]).decode().replace("'OrchestratorVolume'", f"'{VOLUME}'")


def launched(**parameters: str) -> dict[str, Any]:
    return made("AWS::EC2::LaunchTemplate", **ON, **parameters)["OrchestratorTemplate"]["LaunchTemplateData"]


# --- the template ---------------------------------------------------------------------------------------------------


def test_there_is_no_machine_before_the_first_image_and_none_if_it_runs_elsewhere() -> None:
    def kinds(**parameters: str) -> set[str]:
        return {kind for kind in KINDS if made(kind, **parameters)}

    assert kinds() == set()
    assert kinds(**ON) == set(KINDS)
    assert kinds(**ON, OrchestratorType="") == set()
    ours = {"OrchestratorGroup", "OrchestratorVolumeId", "ServerPasswordSecret"}
    assert ours & flat()["Outputs"].keys() == set()
    assert ours <= flat(**ON)["Outputs"].keys()


@pytest.mark.shows("template")
@pytest.mark.parametrize("stack", [{}, OWN, POSTGRES], ids=["vpc made", "own vpc", "postgres"])
def test_one_machine_always_in_the_zone_of_its_volume(stack: dict[str, str]) -> None:
    (group,) = requests(KINDS[0], **ON, **stack).values()
    assert problems(KINDS[0], group) == []
    assert (group["MinSize"], group["MaxSize"], group["DesiredCapacity"]) == (1, 1, 1)
    (volume,) = made(KINDS[1], **ON, **stack).values()
    own = stack.get("VpcId")
    assert group["VPCZoneIdentifier"] == (stack["PrivateSubnetId"] if own else "subnet-0123456789abcdef0")
    assert volume["AvailabilityZone"] == (stack["PrivateSubnetZone"] if own else "us-east-1a")
    launch = requests("AWS::EC2::LaunchTemplate", **ON, **stack)["OrchestratorTemplate"]
    assert problems("AWS::EC2::LaunchTemplate", launch) == []


def test_the_volume_outlives_the_machine_and_the_stack() -> None:
    volume = template()["Resources"]["OrchestratorVolume"]
    assert (volume["DeletionPolicy"], volume["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert volume["Properties"]["Encrypted"] is True
    assert "UpdatePolicy" not in template()["Resources"]["OrchestratorGroup"], "a deploy must not replace the machine"


def test_a_new_stack_goes_on_with_the_volume_of_one_that_is_gone() -> None:
    kept = {**ON, "KeptVolumeId": "vol-0fedcba9876543210"}
    assert "OrchestratorVolume" not in made(KINDS[1], **kept)
    data = made("AWS::EC2::LaunchTemplate", **kept)["OrchestratorTemplate"]["LaunchTemplateData"]["UserData"]
    assert "export VOLUME='vol-0fedcba9876543210' STATE=/srv/millrace\n" in base64.b64decode(data).decode()
    (attach, *_) = made("AWS::IAM::ManagedPolicy", **kept)["OrchestratorPolicy"]["PolicyDocument"]["Statement"]
    assert attach["Resource"][0].endswith(":volume/vol-0fedcba9876543210")
    assert flat(**kept)["Outputs"]["OrchestratorVolumeId"]["Value"] == "vol-0fedcba9876543210"


def test_an_own_subnet_needs_its_zone_and_an_own_database_a_password_and_addresses() -> None:
    told = {
        name: [one["AssertDescription"] for one in rule["Assertions"]] for name, rule in template()["Rules"].items()
    }
    assert "PrivateSubnetZone" in told["ZoneOfTheVolume"][0]
    assert [one.rpartition(" ")[2] for one in told["PasswordOfTheDatabase"]] == ["DatabaseSecret", "DatabaseCidr"]
    pattern = template()["Parameters"]["DatabaseUrl"]["AllowedPattern"]
    assert re.fullmatch(pattern, POSTGRES["DatabaseUrl"])
    assert not re.fullmatch(pattern, "postgresql://millrace:geheim@db.internal:5433/prefect"), "no password in it"


def test_nobody_calls_the_machine_and_it_reaches_the_database_on_its_port_alone() -> None:
    (group,) = launched()["SecurityGroupIds"]
    assert group == "sg-0123456789abcdef0"
    assert "NetworkInterfaces" not in launched()
    for name, rule in made("AWS::EC2::SecurityGroupIngress", **ON, **POSTGRES).items():
        assert "Control" not in str(template()["Resources"][name]["Properties"]["GroupId"]), rule
    out = made("AWS::EC2::SecurityGroupEgress", **ON, **POSTGRES)["ControlSpeaksToDatabase"]
    assert (out["CidrIp"], out["FromPort"], out["ToPort"]) == ("10.0.0.0/16", "5433", "5433")
    assert "ControlSpeaksToDatabase" not in made("AWS::EC2::SecurityGroupEgress", **ON)


def test_its_metadata_and_disks_are_guarded_and_no_stage_may_end_it() -> None:
    data = launched(KmsKey=KEY)
    assert data["MetadataOptions"] == {
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
        "HttpEndpoint": "enabled",
    }
    assert all(one["Ebs"]["Encrypted"] for one in data["BlockDeviceMappings"])
    (tags,) = (one["Tags"] for one in data["TagSpecifications"] if one["ResourceType"] == "instance")
    assert {"Key": "millrace-orchestrator", "Value": "millrace"} in tags
    (ends,) = (one for _, one in statements() if "ec2:TerminateInstances" in listed(one["Action"]))
    (tag,) = (key.partition("/")[2] for key in ends["Condition"]["StringEquals"])
    assert tag not in {one["Key"] for one in tags}
    group = made(KINDS[0], **ON)["OrchestratorGroup"]
    assert not any(one["PropagateAtLaunch"] for one in group["Tags"])


@pytest.mark.shows("least privilege")
@pytest.mark.parametrize("stack", [{}, {"ServerPasswordSecret": "team/prefect", **POSTGRES}], ids=["made", "named"])
def test_it_attaches_its_volume_and_reads_its_secrets_and_nothing_more(stack: dict[str, str]) -> None:
    policy = made("AWS::IAM::ManagedPolicy", **ON, **stack)["OrchestratorPolicy"]
    assert policy["Roles"] == ["ControlRole"]
    by_action: dict[str, list[Any]] = {}
    for one in policy["PolicyDocument"]["Statement"]:
        assert one["Effect"] == "Allow"
        by_action.setdefault(one["Action"], []).append(one)
    assert by_action.keys() == {"ec2:AttachVolume", "secretsmanager:GetSecretValue"}
    (attach,) = by_action["ec2:AttachVolume"]
    ec2, secret = "arn:aws:ec2:us-east-1:123456789012", "arn:aws:secretsmanager:us-east-1:123456789012:secret"
    assert attach["Resource"] == [f"{ec2}:volume/OrchestratorVolume", f"{ec2}:instance/*"]
    assert attach["Condition"] == {"StringEquals": {"aws:ResourceTag/millrace-orchestrator": "millrace"}}
    assert {"Key": "millrace-orchestrator", "Value": "millrace"} in made(KINDS[1], **ON)["OrchestratorVolume"]["Tags"]
    named = [f"{secret}:team/prefect-??????", f"{secret}:team/database-??????"] if stack else ["ServerPassword"]
    assert [one["Resource"] for one in by_action["secretsmanager:GetSecretValue"]] == named
    assert "OrchestratorPolicy" not in made("AWS::IAM::ManagedPolicy")


@pytest.mark.shows("least privilege")
def test_of_an_own_key_it_may_read_secrets_and_let_ec2_decrypt_the_volume() -> None:
    """EC2 decrypts an attached volume by a grant of the caller; no other grant may be made."""
    policy = made("AWS::IAM::ManagedPolicy", **ON, KmsKey=KEY)["OrchestratorPolicy"]
    uses = {one["Action"]: one for one in policy["PolicyDocument"]["Statement"] if one["Action"].startswith("kms:")}
    services = {action: one["Condition"]["StringEquals"]["kms:ViaService"] for action, one in uses.items()}
    assert services == {
        "kms:Decrypt": "secretsmanager.us-east-1.amazonaws.com",
        "kms:CreateGrant": "ec2.us-east-1.amazonaws.com",
    }
    assert uses["kms:CreateGrant"]["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}
    assert made(KINDS[1], **ON, KmsKey=KEY)["OrchestratorVolume"]["KmsKeyId"] == KEY
    assert made(KINDS[2], **ON, KmsKey=KEY)["ServerPassword"]["KmsKeyId"] == KEY


@pytest.mark.shows("least privilege")
def test_no_stage_reads_the_servers_password() -> None:
    """Whoever has it can run commands on the machine; the job publish reads secrets below NAME/."""
    assert "Name" not in made(KINDS[2], **ON)["ServerPassword"]
    (reads,) = (one for owner, one in statements() if owner == "PublishRole" and one.get("Sid") == "Secrets")
    below = plain(reads["Resource"]).rpartition("secret:")[2]
    assert not fnmatch.fnmatchcase("ServerPassword-0aB1cD2eF3gH-i4J5k6", below)


def test_the_user_data_is_the_script_of_the_repository_after_its_variables() -> None:
    whole = user_data()
    assert whole.endswith(SCRIPT.read_text())
    head = whole.removesuffix(SCRIPT.read_text()).splitlines()
    assert head[0] == "#!/bin/bash"
    assert all(line.startswith("export ") for line in head[1:])
    exported = set(re.findall(r"\b([A-Z_]+)=", " ".join(head)))
    described = set(re.findall(r"\b[A-Z][A-Z_]+\b(?=[^\n]*   )", SCRIPT.read_text().partition("set -euo")[0]))
    assert exported == described
    assert len(whole) < 16_384, "EC2 takes no more"
    assert subprocess.run(["bash", "-n"], input=whole, text=True, check=False).returncode == 0


def test_no_secret_is_in_the_user_data_or_in_the_consoles_log() -> None:
    """Secrets are named; and `set -x` would print them."""
    whole = user_data(ServerPasswordSecret="team/prefect", **POSTGRES)
    assert {"team/prefect", "team/database"} <= set(re.findall(r"_SECRET='([^']*)'", whole))
    given = re.findall(r"(?i)(?:password|auth_string)=(\S+)", whole)
    assert {value.removeprefix("millrace:")[0] for value in given} == {"$"}
    assert not re.search(r"^ *set .*x", whole, re.M)
    assert "-x" not in whole.splitlines()[0]


# --- the machine ----------------------------------------------------------------------------------------------------


class Cloud:
    """Volumes and secrets, beside the machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for each in ("holders", "secrets"):
            (folder / each).mkdir(parents=True)
        self.volume = new_volume(folder, VOLUME)
        self.held_by("-")
        self.secret("ServerPassword", PASSWORD)

    def held_by(self, machine: str, tries: int = 0) -> None:
        (self.folder / "holders" / VOLUME).write_text(f"{machine} {tries}\n")

    def secret(self, name: str, text: str) -> None:
        (self.folder / "secrets" / name.replace("/", "_")).write_text(f"{text}\n")

    def machine(self, name: str) -> Machine:
        folder = self.folder.parent / name
        written = {"folder": folder, "cloud": self.folder, "token": TOKEN}
        return Machine(folder, name, aws=AWS.format(**written), docker=DOCKER.format(**written))


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path / "cloud")


def started(machine: Machine, **parameters: str) -> Machine:
    done = machine.boot(user_data(**parameters))
    assert done.returncode == 0, done.stderr
    return machine


def environment(machine: Machine, name: str) -> dict[str, str]:
    lines = (machine.folder / f"containers/{name}.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def identity(cloud: Cloud) -> str:
    """The id of the file system on the volume."""
    call = ["/usr/sbin/blkid", "-p", "-s", "UUID", "-o", "value", cloud.volume]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()


def test_a_first_machine_formats_the_empty_volume_and_starts_server_and_worker(cloud: Cloud) -> None:
    machine = started(cloud.machine("i-1"))
    assert identity(cloud)
    assert machine.calls("dnf", "systemctl") == ["dnf install -y docker", "systemctl enable --now docker"]
    runs = [call for call in machine.calls("docker") if call.startswith("docker run")]
    assert [re.search(r"--name (\w+)", call)[1] for call in runs] == ["server", "worker"]  # pyright: ignore
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/millrace/controlrepository:0.1.0"
    assert runs[0].endswith(f"{image} prefect server start")
    assert runs[1].endswith(image)  # the image's own command is the worker
    assert f"type=bind,src={machine.state}/prefect,dst=/home/millrace/.prefect" in runs[0]
    assert all("--network host" in call and "--restart unless-stopped" in call for call in runs)
    assert not any(PASSWORD in line for line in machine.calls("docker", "aws"))
    server, worker = environment(machine, "server"), environment(machine, "worker")
    assert server["PREFECT_SERVER_API_AUTH_STRING"] == f"millrace:{PASSWORD}"
    assert worker["PREFECT_API_AUTH_STRING"] == f"millrace:{PASSWORD}"
    assert worker["MILLRACE_WORKSPACE"] == "s3://Bucket/main"
    assert worker["MILLRACE_CONFIG"] == "s3://Bucket/settings/team.yaml"
    assert not any("DATABASE" in name for name in server.keys() - {"PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"})


def test_the_next_machine_waits_for_the_volume_and_finds_its_files(cloud: Cloud) -> None:
    first = started(cloud.machine("i-1"))
    (first.state / "prefect/prefect.db").write_text("runs")
    before = identity(cloud)
    cloud.held_by("i-1", tries=7)  # until it has ended
    second = started(cloud.machine("i-2"))
    assert identity(cloud) == before, "it was not formatted"
    assert (second.state / "prefect/prefect.db").read_text() == "runs"
    assert len([call for call in second.calls("aws") if "attach-volume" in call]) == 8
    assert (second.folder / "containers/server").exists()


def test_a_machine_that_gets_no_volume_starts_no_server(cloud: Cloud) -> None:
    """Else the server would begin anew on the machine's own disk."""
    cloud.held_by(BEFORE, tries=1_000)
    machine = cloud.machine("i-1")
    done = machine.boot(user_data())
    assert done.returncode == 1
    assert f"{VOLUME} was not attached" in done.stderr
    assert machine.calls("docker", "mount") == []


@pytest.mark.parametrize("held", ["partitions", "unreadable"])
def test_a_volume_that_holds_anything_else_is_left_as_it_is(cloud: Cloud, held: str) -> None:
    """A partition table, or a disk that can't be read: no file system of ours, and not empty."""
    machine = cloud.machine("i-1")
    if held == "partitions":
        with cloud.volume.open("r+b") as file:
            file.seek(510)
            file.write(b"\x55\xaa")
            file.seek(446)
            file.write(bytes([0, 0, 2, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 0, 64, 0, 0]))
    else:
        (machine.folder / "bin/wipefs").write_text("#!/bin/bash\necho 'Input/output error' >&2\nexit 1\n")
        (machine.folder / "bin/wipefs").chmod(0o755)
    before = cloud.volume.read_bytes()
    assert machine.boot(user_data()).returncode != 0
    assert cloud.volume.read_bytes() == before
    assert not (machine.folder / "containers").exists()


def test_a_second_boot_does_no_harm_and_takes_a_new_password(cloud: Cloud) -> None:
    machine = started(cloud.machine("i-1"))
    (machine.state / "prefect/prefect.db").write_text("runs")
    before, attached = identity(cloud), len(machine.calls("aws"))
    cloud.secret("ServerPassword", "other:geheim")
    for _ in range(2):
        (done,) = machine.boot_again()
        assert done.returncode == 0, done.stderr
    assert identity(cloud) == before
    assert (machine.state / "prefect/prefect.db").read_text() == "runs"
    assert not any("attach-volume" in call for call in machine.calls("aws")[attached:])
    assert len(machine.calls("dnf")) == 1
    assert environment(machine, "server")["PREFECT_SERVER_API_AUTH_STRING"] == "other:geheim"
    assert environment(machine, "worker")["PREFECT_API_AUTH_STRING"] == "other:geheim"


@pytest.mark.parametrize("text", ["p=w#d", '{"username": "millrace", "password": "p=w#d"}'], ids=["text", "of RDS"])
def test_the_server_alone_gets_the_address_and_password_of_an_own_postgres(cloud: Cloud, text: str) -> None:
    cloud.secret("team/database", text)
    machine = started(cloud.machine("i-1"), **POSTGRES)
    database = {
        name.removeprefix("PREFECT_SERVER_DATABASE_"): value
        for name, value in environment(machine, "server").items()
        if name.startswith("PREFECT_SERVER_DATABASE_")
    }
    assert database == {
        "DRIVER": "postgresql+asyncpg",
        "USER": "millrace",
        "HOST": "db.internal",
        "PORT": "5433",
        "NAME": "prefect",
        "PASSWORD": "p=w#d",
    }
    assert "p=w#d" not in environment(machine, "worker").values()


def test_a_missing_secret_starts_nothing_and_is_looked_for_again(cloud: Cloud) -> None:
    """Else a machine of the group would stay without an orchestrator until a person notices."""
    (cloud.folder / "secrets/ServerPassword").unlink()
    machine = cloud.machine("i-1")
    assert machine.boot(user_data()).returncode != 0
    assert machine.calls("docker") == []
    (again,) = machine.calls("systemd-run")
    cloud.secret("ServerPassword", PASSWORD)
    done = machine.run(Path(again.split()[-1]))
    assert done.returncode == 0, done.stderr
    assert environment(machine, "server")["PREFECT_SERVER_API_AUTH_STRING"] == f"millrace:{PASSWORD}"
    assert machine.calls("systemd-run") == [again]


def test_elsewhere_the_script_keeps_the_state_in_a_volume_of_docker(cloud: Cloud) -> None:
    variables = re.sub(r"^export (VOLUME|EACH_BOOT)=.*$", "", user_data(), flags=re.M)
    machine = cloud.machine("i-1")
    assert machine.boot(variables).returncode == 0
    (server,) = (call for call in machine.calls("docker") if "--name server" in call)
    assert "--mount type=volume,src=prefect,dst=/home/millrace/.prefect" in server
    assert machine.calls("lsblk", "mount", "chown", "cloud-init") == []
    assert not (machine.folder / "var/lib/cloud/scripts").exists()


def test_the_machines_role_allows_the_calls_of_the_script(cloud: Cloud) -> None:
    actions = {
        "ec2 attach-volume": "ec2:AttachVolume",
        "secretsmanager get-secret-value": "secretsmanager:GetSecretValue",
        "ecr get-login-password": "ecr:GetAuthorizationToken",
    }
    calls = {" ".join(call.split()[1:3]) for call in started(cloud.machine("i-1")).calls("aws")}
    assert calls == set(actions)
    given = {
        action
        for owner, one in statements()
        if owner in ("ControlRole", "OrchestratorPolicy")
        for action in listed(one["Action"])
    }
    assert set(actions.values()) <= given
