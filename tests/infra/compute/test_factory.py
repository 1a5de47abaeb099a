"""Where each stage runs."""

from pathlib import Path

import pytest

from configs.load import load_config
from infra.compute.batch.runner import BatchRunner
from infra.compute.factory import make_runner
from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage


@pytest.mark.parametrize(
    ("overrides", "on_batch"),
    [
        ([], set()),
        (["compute=batch"], set(Stage)),
        (["train.compute=batch"], {Stage.health, Stage.warmup, Stage.train, Stage.evaluate}),
        (["compute=batch", "validate.compute=local", "release.compute=local"], set(Stage) - {"validate", "release"}),
    ],
    ids=["here", "there", "the training there", "two here"],
)
def test_each_stage_runs_where_its_configuration_says(
    tmp_path: Path, overrides: list[str], on_batch: set[Stage]
) -> None:
    config, store = load_config(None, overrides), DirectoryStore(tmp_path)
    runners = {stage: type(make_runner(config, store, stage)) for stage in Stage}
    assert runners == {stage: BatchRunner if stage in on_batch else LocalRunner for stage in Stage}
