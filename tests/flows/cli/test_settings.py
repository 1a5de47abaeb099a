"""`millrace config`: what a key means, its value in force, and who sets it."""

from __future__ import annotations

import pytest

from tests.support.processes.command import call


def test_a_key_shows_meaning_value_origin_type_and_effect(capsys: pytest.CaptureFixture[str]) -> None:
    out = call(capsys, "config", "train.epochs", "--config", "configs/demo.yaml", "--set", "train.epochs=9").out
    first, meaning, about = out.splitlines()
    assert first == "train.epochs: 9  # --set train.epochs=9"
    assert "passes over the rows" in meaning
    assert about.strip() == "integer above 0; default 1; decides the result"


def test_a_section_shows_its_keys_alone(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [each["key"] for each in call(capsys, "config", "retry", "--json").json["settings"]]
    assert keys
    assert all(key.startswith("retry.") for key in keys)


def test_without_a_key_all_are_shown_and_need_no_workspace(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {each["key"]: each for each in call(capsys, "config", "--json").json["settings"]}
    assert len(settings) > 230
    assert settings["publish.compute"]["decides"] is False
    assert settings["model.pooling"]["decides"] is True


def test_a_name_of_the_user_stands_for_name(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [each["key"] for each in call(capsys, "config", "validate.drift.columns.price", "--json").json["settings"]]
    assert keys == ["validate.drift.columns.NAME.limit", "validate.drift.columns.NAME.severity"]


def test_an_entry_of_a_list_is_found_as_messages_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    keys = [each["key"] for each in call(capsys, "config", "publish.targets.0.kind", "--json").json["settings"]]
    assert set(keys) == {"publish.targets[].kind"}


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("train.learnign_rate", "did you mean 'train.learning_rate'?"),
        ("trian", "did you mean 'train'?"),
        ("train.epochs.more", "no key 'train.epochs.more'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str], key: str, hint: str) -> None:
    result = call(capsys, "config", key)
    assert result.code == 78
    assert hint in result.err
