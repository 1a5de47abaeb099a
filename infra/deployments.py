"""The deployments of a workspace: prefect.yaml with its names and settings, compared with the server.

Several workspaces may share a server: a deployment belongs to the workspace in its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from infra.store.factory import scheme_of
from tasks.foundation.errors import ConfigError
from tasks.foundation.process import ROOT, code_version
from tasks.foundation.s3_path import SCHEME

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

FILE = ROOT / "prefect.yaml"
PULL = "prefect.deployments.steps.set_working_directory"
IN_IMAGE = Path("/opt/millrace")  # the code in the control image, where pools of containers run flows
_NAMED = "workspace"  # the name in prefect.yaml that stands for the workspace's
_UNNAMED = "millrace"  # `pipeline` in base.yaml
_BY_SPAN, _DAILY = "by-span", "daily"  # slugs of the schedules in the time zone of the settings
_REAPER = "reap"
_MOST = 200  # the size of a page in Prefect's API


class Source(NamedTuple):
    """A workspace with the options and settings that its deployments are made from."""

    uri: str
    config_file: str  # absolute; empty: base.yaml alone
    overrides: tuple[str, ...]
    pipeline: str
    lineage: str
    cron: str
    zone: str
    on_batch: bool  # some stage runs on AWS Batch


class Deployed(NamedTuple):
    """A deployment on the server."""

    name: str  # flow and own name, as in pipeline/shop-pipeline
    workspace: str  # its address; empty: not one of ours
    response: DeploymentResponse

    @property
    def flow(self) -> str:
        """The name of its flow."""
        return self.name.partition("/")[0]


def _read() -> dict[str, Any]:
    if not FILE.is_file():
        raise ConfigError(f"{FILE} is missing: deploy from the repository or the control image")
    tree: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return tree


def pool() -> str:
    """Return the name of the work pool in prefect.yaml. Raises ConfigError: the file is missing."""
    return str(_read()["deployments"][0]["work_pool"]["name"])


def name_of(source: Source) -> str:
    """Return the first part of the deployments' names: workspace and pipeline.

    As `shop` of s3://acme/shop, or `shop-offers` if `pipeline` is offers; the pipeline's default name is left out.
    """
    workspace, pipeline = slug(source.uri.rstrip("/").rpartition("/")[2]) or _NAMED, slug(source.pipeline)
    return workspace if pipeline in ("", _UNNAMED, workspace) else f"{workspace}-{pipeline}"


def slug(words: str) -> str:
    """Return words as a part of a name that a shell and Prefect take as it is."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", words).strip("-.")


def rendered(source: Source, name: str, kind: str) -> dict[str, Any]:
    """Return prefect.yaml for a workspace, as `prefect deploy` reads it.

    Args:
        name: the first part of each deployment's name.
        kind: the type of the work pool; in any but `process`, flows run in containers of the control image.

    Raises:
        ConfigError: flows in containers can't reach the workspace or the config file; as `pool`.
    """
    tree = _read()
    local = kind == "process"
    tree["pull"] = [{PULL: {"directory": str(ROOT if local else IN_IMAGE)}}]
    given = {
        "workspace": source.uri if local else _in_bucket(source.uri, kind),
        "config_file": source.config_file if local else _in_image(source.config_file, kind),
        "overrides": list(source.overrides),
    }
    code = code_version()
    tree["deployments"] = [each for each in tree["deployments"] if source.on_batch or _flow(each) != _REAPER]
    for each in tree["deployments"]:
        each["name"] = f"{name}-{each['name'].removeprefix(f'{_NAMED}-')}"
        each["parameters"] = dict(given)
        each["tags"] = [*each.get("tags", ()), f"pipeline:{source.pipeline}", _lineage(source)]
        each["version"] = code
        each["schedules"] = [_scheduled(one, source) for one in each.get("schedules") or ()]
    return tree


def _in_bucket(uri: str, kind: str) -> str:
    if scheme_of(uri) != "s3":
        raise ConfigError(
            f"the work pool has the type {kind}, so flows run in containers, which do not see {uri}; put the workspace "
            "into a bucket, or deploy to a pool of type process"
        )
    return uri


def _in_image(config_file: str, kind: str) -> str:
    """Return the path of a config file in the control image, which holds configs/; of one in a bucket the same."""
    if not config_file or config_file.startswith(SCHEME):
        return config_file
    if not Path(config_file).is_relative_to(ROOT / "configs"):
        raise ConfigError(
            f"the work pool has the type {kind}, so flows run in containers, which do not see {config_file}; put it "
            f"into a bucket (--config s3://...), or into {ROOT / 'configs'} and build the control image again"
        )
    return str(IN_IMAGE / Path(config_file).relative_to(ROOT))


def _scheduled(schedule: dict[str, Any], source: Source) -> dict[str, Any]:
    """Return a schedule; the cron and the time zone of the settings replace its own if it follows them."""
    zone = source.zone
    if schedule.get("slug") == _BY_SPAN:
        return {**schedule, "cron": source.cron, "timezone": zone, "parameters": {"scheduled_in": zone}}
    return {**schedule, "timezone": zone} if schedule.get("slug") == _DAILY else schedule


def full_names(tree: dict[str, Any]) -> list[str]:
    """Return the names on the server of the deployments in a tree, in its order."""
    return [f"{_flow(each)}/{each['name']}" for each in tree["deployments"]]


def _flow(deployment: dict[str, Any]) -> str:
    """Return the name of a deployment's flow, which has the name of its function."""
    return str(deployment["entrypoint"]).rpartition(":")[2]


def on_server(client: SyncPrefectClient) -> list[Deployed]:
    """Return the deployments on the server by name; other projects' too."""
    found: list[DeploymentResponse] = []
    while len(page := client.read_deployments(limit=_MOST, offset=len(found))) == _MOST:
        found += page
    flows = {flow.id: flow.name for flow in _all_flows(client)}
    every = (Deployed(f"{flows.get(each.flow_id, '')}/{each.name}", _workspace(each), each) for each in found + page)
    return sorted(every, key=lambda one: one.name)


def _all_flows(client: SyncPrefectClient) -> Iterator[Any]:
    offset = 0
    while page := client.read_flows(limit=_MOST, offset=offset):
        yield from page
        offset += len(page)


def _workspace(deployment: DeploymentResponse) -> str:
    """Return the address of a deployment's workspace, which may be relative to its working directory."""
    uri = str((deployment.parameters or {}).get("workspace") or "")
    if not uri or scheme_of(uri) == "s3" or Path(uri).is_absolute():
        return uri
    return str(directory(deployment) / uri)


def directory(deployment: DeploymentResponse) -> Path:
    """Return the working directory of a deployment's flow runs; the current one if it names none."""
    steps = {name: step for each in deployment.pull_steps or () for name, step in each.items()}
    return Path(str(steps.get(PULL, {}).get("directory", ".")))


def require_own(names: Sequence[str], found: Sequence[Deployed], uri: str) -> None:
    """Raise ConfigError if a deployment with one of these names belongs to another workspace; names the way out."""
    by_name = {one.name: one for one in found}
    for one in (by_name[name] for name in names if name in by_name):
        if one.workspace != uri:
            raise ConfigError(
                f"the server has the deployment {one.name} of {one.workspace or 'another project'}, and this is {uri}; "
                "to have both, give this one's deployments a name: millrace deploy --name NAME; to give up the other: "
                f"prefect deployment delete {one.name}"
            )


def left_over(names: Sequence[str], found: Sequence[Deployed], source: Source) -> list[Deployed]:
    """Return the workspace's deployments of the same lineage that are not among these names; they may still run."""
    return [one for one in _of(source, found) if one.name not in names]


def _of(source: Source, found: Sequence[Deployed]) -> list[Deployed]:
    """Return the deployments of a workspace that name its lineage, or none."""
    return [
        one
        for one in found
        if one.workspace == source.uri
        and all(tag == _lineage(source) for tag in one.response.tags if tag.startswith("lineage:"))
    ]


def _lineage(source: Source) -> str:
    return f"lineage:{source.lineage}"


def name_on_server(found: Sequence[Deployed], source: Source) -> str:
    """Return the first part of the names that the workspace's deployments have; `name_of` if it has none there."""
    names = (one.name.partition("/")[2].removesuffix(f"-{one.flow}") for one in _of(source, found))
    return next(names, name_of(source))


def differences(tree: dict[str, Any], found: Sequence[Deployed], source: Source) -> Iterator[str]:
    """Yield a sentence for each difference between the server and the deployments of a tree, from `rendered`."""
    there = {one.name: one for one in _of(source, found)}
    names = full_names(tree)
    if missing := [name for name in names if name not in there]:
        yield f"not deployed: {', '.join(missing)}"
    if extra := [one.name for one in left_over(names, found, source)]:
        yield f"left over, and may still run: {', '.join(extra)}"
    code = Path(tree["pull"][0][PULL]["directory"])
    seen: dict[str, list[str]] = {}
    for name, wanted in zip(names, tree["deployments"], strict=True):
        if name in there:
            for sentence in _differs(wanted, there[name].response, code):
                seen.setdefault(sentence, []).append(name)
    for sentence, where in seen.items():
        yield f"{'all' if len(where) == len(names) else ', '.join(where)}: {sentence}"


def _differs(wanted: dict[str, Any], there: DeploymentResponse, code: Path) -> Iterator[str]:
    parameters = there.parameters or {}
    for key, value in wanted["parameters"].items():
        if key != "workspace" and parameters.get(key) != value:
            yield f"{key} is {parameters.get(key) or 'empty'} there, {value or 'empty'} here"
    if directory(there) != code:
        yield f"the code of {directory(there)} runs there, this is {code}"
    crons = [(getattr(one.schedule, "cron", None), getattr(one.schedule, "timezone", None)) for one in there.schedules]
    if crons != (here := [(one["cron"], one["timezone"]) for one in wanted["schedules"]]):
        shown = [", ".join(f"{cron} {zone}" for cron, zone in each) or "none" for each in (crons, here)]
        yield f"the schedule is {shown[0]} there, {shown[1]} here"
