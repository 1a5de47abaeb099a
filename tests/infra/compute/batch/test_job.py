"""The request for SubmitJob; Batch's own retries follow the table of failure classes."""

import re

import pytest

from infra.compute.batch.api import Definition, Queue
from infra.compute.batch.job import (
    definition_of,
    evaluate_on_exit,
    is_repeated,
    job_name,
    layout_of,
    nodes_of,
    queue_of,
    queues_of,
    submission,
    tag_value,
    tags_of,
)
from tasks.contracts.stages import Chore, Layout, Stage, instance_of
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker.launch.this_node import processes_per_node
from tests.support.workspace.specs import spec_of

FIFO = Queue("q", enabled=True, status="VALID", status_reason="", fair_share=False)
FAIR = Queue("q", enabled=True, status="VALID", status_reason="", fair_share=True)
DEFINITION = Definition("d", 3, multi_node=True, log_group="g")
ON_PODS = Definition("d", 3, multi_node=True, log_group=None, pod_container="worker")


@pytest.mark.parametrize(
    ("stage", "workers", "layout", "nodes"),
    [
        (Stage.health, 64, Layout.nodes, 2),
        (Stage.warmup, 1, Layout.nodes, 1),
        (Stage.infer, 128, Layout.array, 4),
        (Stage.infer, 32, Layout.single, 1),
        (Stage.infer, 4, Layout.single, 1),
        (Stage.validate, 1, Layout.single, 1),
        (Stage.validate, 3, Layout.array, 3),
        (Chore.import_checkpoint, 1, Layout.single, 1),
        (Chore.publish, 1, Layout.single, 1),
    ],
)
def test_the_stage_and_its_workers_decide_layout_and_nodes(stage, workers, layout, nodes) -> None:
    spec = spec_of(stage, workers, "batch.processes_per_node=32")
    assert (layout_of(spec), nodes_of(spec)) == (layout, nodes)


@pytest.mark.parametrize(("stage", "queue"), [(Stage.release, "cheap"), (Stage.infer, "dear")])
def test_stages_without_a_model_go_to_the_cheap_queue(stage, queue) -> None:
    spec = spec_of(stage, 1, "batch.cpu_queue=cheap", "batch.accelerator_queue=dear")
    assert queue_of(stage, spec.config.batch) == queue


def test_infer_may_have_machines_of_its_own() -> None:
    other = "{queue: q, definition: 'i-{stage}', processes_per_node: 2, instance: inf2.xlarge, target: inf2}"
    infer, warmup = (
        spec_of(stage, 32, f"batch.infer={other}", "batch.processes_per_node=32")
        for stage in (Stage.infer, Stage.warmup)
    )
    batch = infer.config.batch
    assert (queue_of(Stage.infer, batch), definition_of(Stage.infer, batch)) == ("q", "i-infer")
    assert (nodes_of(infer), processes_per_node(infer)) == (16, 2)
    assert [instance_of(infer.config, stage) for stage in (Stage.infer, Stage.warmup)] == ["inf2.xlarge", None]
    assert (nodes_of(warmup), processes_per_node(warmup)) == (1, 32)
    assert definition_of(Stage.warmup, batch) == "millrace-warmup"
    assert queues_of(batch) == ("millrace-cpu", "millrace-accelerator", "q")
    gpus = other.replace("q,", "gpus,").replace(", target: inf2", "")
    batch = spec_of(Stage.infer, 32, f"batch.cuda={gpus}").config.batch
    assert queues_of(batch) == ("millrace-cpu", "millrace-accelerator", "gpus")


def test_a_jobs_name_is_fixed_by_its_attempt() -> None:
    assert job_name(spec_of(Stage.health)) == job_name(spec_of(Stage.health))
    assert re.fullmatch(r"millrace-health-f00d-[0-9a-f]{8}-a1", job_name(spec_of(Stage.health)))
    others = [spec_of(Stage.health, attempt=2), spec_of(Stage.health, 2), spec_of(Stage.warmup)]
    assert len({job_name(spec) for spec in [spec_of(Stage.health), *others]}) == 4


@pytest.mark.parametrize("pipeline", ["größe/$ 1", "_-x", "x" * 300, "$"])
def test_batch_accepts_the_name_of_any_pipeline(pipeline) -> None:
    name = job_name(spec_of(Stage.health, 1, f"pipeline='{pipeline}'", attempt=7))
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", name)
    assert name.endswith("-a7")


def test_tags_name_run_stage_and_workspace() -> None:
    assert tags_of(spec_of(Stage.health, attempt=2), "s3://b/w", "run-1") == {
        "millrace": "millrace",
        "millrace-run": "f00d",
        "millrace-stage": "health",
        "millrace-attempt": "2",
        "millrace-workspace": "s3://b/w",
        "millrace-lineage": "main",
        "millrace-flow-run": "run-1",
    }
    assert "millrace-flow-run" not in tags_of(spec_of(Stage.health), "s3://b/w", "")


def test_a_tag_that_aws_would_refuse_is_changed_and_stays_unique() -> None:
    assert tag_value("s3://bucket/a b_c-d.e+f=@") == "s3://bucket/a b_c-d.e+f=@"
    long, other = tag_value("x" * 300), tag_value("x" * 301)
    assert len(long) == 256
    assert long != other
    assert re.fullmatch(r"/tmp/_-[0-9a-f]{8}", tag_value("/tmp/#"))


def test_a_multi_node_job_gives_each_node_the_launchers_command() -> None:
    spec = spec_of(Stage.health, 2)
    request = submission(spec, "s3://b/w", "", 3, FIFO, DEFINITION)
    command = ["python", "-m", "tasks.worker.launch", "health"]
    command += ["--spec", f"s3://b/w#runs/f00d/health/attempt-1/spec.json#{spec.sha256}"]
    assert request["nodeOverrides"] == {
        "numNodes": 2,
        "nodePropertyOverrides": [{"targetNodes": "0:", "containerOverrides": {"command": command}}],
    }
    assert request["jobDefinition"] == "d:3"
    assert request["retryStrategy"] == {"attempts": 3, "evaluateOnExit": evaluate_on_exit()}
    assert request["timeout"] == {"attemptDurationSeconds": 86400}
    assert not {"arrayProperties", "containerOverrides"} & request.keys()


def test_a_pods_command_goes_to_its_container_and_its_tags_stay_with_the_job() -> None:
    spec = spec_of(Stage.health, 2)
    request = submission(spec, "s3://b/w", "", 3, FIFO, ON_PODS)
    (everywhere,) = request["nodeOverrides"]["nodePropertyOverrides"]
    (container,) = everywhere["eksPropertiesOverride"]["podProperties"]["containers"]
    assert (container["name"], container["command"][:4]) == (
        "worker",
        ["python", "-m", "tasks.worker.launch", "health"],
    )
    assert "containerOverrides" not in everywhere
    assert "propagateTags" not in request
    assert request["tags"]["millrace-stage"] == "health"


def test_an_array_has_one_child_per_node_and_a_single_container_is_no_array() -> None:
    assert submission(spec_of(Stage.infer, 4), "w", "", 1, FIFO, DEFINITION)["arrayProperties"] == {"size": 4}
    assert "arrayProperties" not in submission(spec_of(Stage.infer, 1), "w", "", 1, FIFO, DEFINITION)


def test_share_and_priority_are_sent_to_fair_share_queues_only() -> None:
    spec = spec_of(Stage.health, 1, "batch.share=search", "batch.priority=7")
    fair = submission(spec, "w", "", 1, FAIR, DEFINITION)
    assert (fair["shareIdentifier"], fair["schedulingPriorityOverride"]) == ("search", 7)
    assert not {"shareIdentifier", "schedulingPriorityOverride"} & submission(spec, "w", "", 1, FIFO, DEFINITION).keys()


def test_batch_takes_at_most_ten_tries() -> None:
    assert submission(spec_of(Stage.health), "w", "", 40, FIFO, DEFINITION)["retryStrategy"]["attempts"] == 10


def repeated_by(rules: list[dict[str, str]], status_reason: str, reason: str, exit_code: int | None) -> bool:
    """As Batch documents it: the first rule with matching conditions decides; without one it repeats."""
    ending = {
        "onStatusReason": status_reason,
        "onReason": reason,
        "onExitCode": "" if exit_code is None else str(exit_code),
    }
    for rule in rules:
        conditions = {key: pattern for key, pattern in rule.items() if key != "action"}
        if all(ending[k].startswith(p[:-1]) if p.endswith("*") else ending[k] == p for k, p in conditions.items()):
            return rule["action"].upper() == "RETRY"
    return True


@pytest.mark.parametrize("failure", FailureClass)
def test_exit_codes_are_repeated_as_the_table_says(failure) -> None:
    policy = POLICIES[failure]
    expected = policy.transient and failure is not FailureClass.CAPACITY
    ended = "Essential container in task exited"
    assert repeated_by(evaluate_on_exit(), ended, "", policy.exit_code) == expected
    assert is_repeated(ended, policy.exit_code) == expected


@pytest.mark.parametrize(
    ("status_reason", "reason", "exit_code", "expected"),
    [
        ("Host EC2 (instance i-0abc) terminated.", "", None, True),
        ("Task failed to start", "CannotPullContainerError: no such image", None, False),
        ("Essential container in task exited", "OutOfMemoryError: Container killed", 137, False),
        ("Essential container in task exited", "", 1, False),
        ("", "", None, False),
    ],
)
def test_a_lost_host_is_repeated_and_everything_else_exits(status_reason, reason, exit_code, expected) -> None:
    assert repeated_by(evaluate_on_exit(), status_reason, reason, exit_code) == expected
    assert is_repeated(status_reason, exit_code) == expected


def test_batch_takes_the_rules_and_the_last_one_fits_all() -> None:
    rules = evaluate_on_exit()
    assert len(rules) <= 5  # the most that AWS Batch takes
    assert rules[-1] == {"onReason": "*", "action": "EXIT"}
