"""A folder whose model can't be released is refused before anything is trained."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from infra.store.manifest import MissingFolder
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.foundation.errors import ConfigError
from tasks.worker import validate
from tasks.worker.export import trial_release
from tasks.worker.export.trial_release import try_release
from tests.support.fakes.own_process import encode_here
from tests.support.models.layouts import settings_for, write_layout
from tests.support.workspace.jobs import make_job, make_workspace, tiny_config

MINILM, QWEN = "all-MiniLM-L6-v2", "Qwen3-Embedding-0.6B"


def change(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def without_padding(folder: Path) -> None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        change(folder / name, pad_token=None, tokenizer_class="PreTrainedTokenizerFast")


def another_case(folder: Path) -> None:
    """The settings, from which the library builds its tokenizer, keep capitals; the file lower-cases."""
    change(folder / "tokenizer_config.json", do_lower_case=False)


def cut_left(folder: Path) -> None:
    change(folder / "tokenizer_config.json", truncation_side="left")


@pytest.mark.parametrize(
    ("layout", "spoil", "said"),
    [
        (QWEN, without_padding, "can't be exported.*padding token"),
        (MINILM, another_case, "gives the query '2 Crème"),
        (MINILM, cut_left, "gives the query '2 Crème"),
    ],
)
def test_a_model_that_its_consumers_would_read_in_another_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, spoil: Any, said: str
):
    encode_here(monkeypatch)
    folder = write_layout(layout, tmp_path / layout)
    config = tiny_config(*settings_for(layout, folder))
    try_release(config)
    spoil(folder)
    with pytest.raises(ConfigError, match=said) as caught:
        try_release(config)
    assert str(folder) in str(caught.value)
    assert "nothing was trained" in str(caught.value)


def test_a_lineage_with_features_prompts_and_heads_is_tried_without_its_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    encode_here(monkeypatch)
    folder = write_layout(QWEN, tmp_path / QWEN)
    try_release(
        tiny_config(
            *settings_for(QWEN, folder), "features.numeric=[price]", "features.entity=locale",
            "model.interaction.kind=both", "model.embedding_width=12", "model.dropout=0.1",
            'model.prompts={query: "ask: ", item: "thing: ", by_entity: {de: {query: "frag: "}}}',
            "heads.classification={weight: 0.5, input: pair, negative_max: 2, positive_min: 4}",
        )
    )  # fmt: skip


PARENT = CheckpointRef(prefix="lineages/main/step-00000001", step=1, sha256="0" * 64)
BEGINS = {"window": (SpanRef(name="2026-01", version=1),), "parent": None, "catalogue": True}


@pytest.mark.parametrize(
    ("different", "tried"),
    [({}, True), ({"parent": PARENT}, False), ({"window": ()}, False), ({"catalogue": False}, False)],
)
def test_validate_tries_it_first_and_only_where_a_lineage_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, different: dict[str, Any], tried: bool
):
    calls: list[object] = []
    monkeypatch.setattr(trial_release, "try_release", calls.append)
    folder = write_layout(MINILM, tmp_path / MINILM)
    store, _ = make_workspace(tmp_path, rows=20)
    inputs = ValidateInputs(history=(), feeds=(), bases=(), **(BEGINS | different))
    with contextlib.suppress(MissingFolder):  # there is no such span
        validate.judge(make_job(store, tiny_config(*settings_for(MINILM, folder)), inputs))
    assert bool(calls) == tried


def test_a_folder_that_only_trainings_machines_have_is_not_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    store, _ = make_workspace(tmp_path, rows=20)
    inputs = ValidateInputs(history=(), feeds=(), bases=(), **BEGINS)
    with pytest.raises(MissingFolder):
        validate.judge(make_job(store, tiny_config("model.pretrained=/nowhere"), inputs))
    assert "/nowhere where validate runs" in capfd.readouterr().out
