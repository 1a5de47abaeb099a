"""Settings of a workspace with daily spans."""

import pytest

from configs.schema.config import Config
from tests.support.fakes.fake_runner import small_config
from tests.tasks.monitoring.looks import DAILY


@pytest.fixture
def config() -> Config:
    return small_config(*DAILY, "freshness.deadline_hours=4")
