"""A run that is done, and what its pages show of it."""

from __future__ import annotations

from typing import Any

from flows.presentation.model import Section
from flows.presentation.run.pages import stage_page
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.planning.next_run import plan_run
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.stages import Run, carry_out


class Done:
    """A run that is done, and the sections of its stages."""

    def __init__(self, store: DirectoryStore, *overrides: str) -> None:
        self.store = store
        self.plan = plan_run(store, small_config(*overrides))
        self.run: Run = carry_out(self.plan)

    def of(self, stage: Stage, value: Any, **changes: Any) -> Section:
        return stage_page(self.store, self.plan, stage, value.model_copy(update=changes))
