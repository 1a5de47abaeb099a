"""The template for a cluster of Amazon EKS: AWS would take its calls, and each stage finds its queue and definition."""

from __future__ import annotations

import pytest

from configs.load import load_config
from infra.compute.batch.job import definition_of, queue_of
from tasks.contracts.stages import WORKS, Layout
from tests.support.cloud.requests import definitions, problems, requests
from tests.support.cloud.template import ON_EKS, STACK_ON_EKS, template

KINDS = ("AWS::Batch::ComputeEnvironment", "AWS::Batch::JobQueue", "AWS::Batch::JobDefinition")


@pytest.mark.parametrize("machine", template(ON_EKS)["Parameters"]["GpuType"]["AllowedValues"])
def test_aws_batch_takes_the_calls(machine: str) -> None:
    made = {kind: requests(kind, ON_EKS, **STACK_ON_EKS, GpuType=machine) for kind in KINDS}
    assert [problem for kind in KINDS for request in made[kind].values() for problem in problems(kind, request)] == []
    assert not [name for name, request in made[KINDS[2]].items() if "propagateTags" in request]


def test_each_stage_finds_its_queue_and_a_definition_of_its_layout() -> None:
    batch = load_config("configs/cuda.yaml", ["compute=batch"]).batch
    known = definitions(ON_EKS, **STACK_ON_EKS)
    queues = {request["jobQueueName"] for request in requests(KINDS[1], ON_EKS, **STACK_ON_EKS).values()}
    for stage in WORKS:
        kind = "multinode" if stage.traits.layout is Layout.nodes else "container"
        assert (stage, known[definition_of(stage, batch)]["type"]) == (stage, kind)
        assert queue_of(stage, batch) in queues
