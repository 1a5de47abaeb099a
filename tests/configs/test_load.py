import itertools
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.keys import EACH, NAME, all_keys
from configs.load import BASE, config_hash, differences, load_config, to_yaml, with_overrides
from configs.prices import PRICES
from configs.schema.config import Config
from tasks.foundation.errors import ConfigError

TABLES = {PRICES.with_name(name) for name in ("instances.yaml", "published.yaml", "published_trainings.yaml")}
PLACES = sorted({*BASE.parent.glob("*.yaml")} - {BASE, PRICES, *TABLES})
HEAD = "heads.classification={weight: 0.5, input: pair, negative_max: 2, positive_min: 4}"


def config_file(folder: Path, text: str) -> Path:
    path = folder / "team.yaml"
    path.write_text(text)
    return path


def refusal(file: Path | None = None, overrides: Sequence[str] = ()) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(file, overrides)
    return str(error.value)


def test_base_alone_is_a_configuration() -> None:
    config = load_config()
    assert (config.lineage, config.accelerator, config.train.workers) == ("main", "cpu", 1)


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.stem)
def test_every_configuration_file_loads(path: Path) -> None:
    assert isinstance(load_config(path), Config)


def test_a_file_changes_only_the_keys_it_names(tmp_path: Path) -> None:
    changed = load_config(config_file(tmp_path, "train:\n  epochs: 7\n  max_tokens: {query: 8}\n"))
    base = load_config()
    assert (changed.train.epochs, changed.train.max_tokens.query) == (7, 8)
    assert changed.train.max_tokens.item == base.train.max_tokens.item
    assert changed == load_config(overrides=["train.epochs=7", "train.max_tokens.query=8"])


def test_a_file_changes_the_one_that_it_extends(tmp_path: Path) -> None:
    (tmp_path / "place.yaml").write_text("seed: 1\ntrain: {epochs: 7, warmup_steps: 3}\n")
    (tmp_path / "sub").mkdir()
    changed = load_config(config_file(tmp_path / "sub", "extends: ../place.yaml\ntrain: {epochs: 8}\n"), ["seed=2"])
    assert changed == load_config(overrides=["seed=2", "train.epochs=8", "train.warmup_steps=3"])


def test_a_preset_differs_from_the_place_that_it_extends_in_a_few_keys_alone() -> None:
    place = load_config(BASE.with_name("trainium.yaml"))
    changed = {
        name: {line.split(" ")[0] for line in differences(place, load_config(BASE.with_name(f"{name}.yaml")))}
        for name in ("trainium-m5", "trainium-stochastic")
    }
    assert changed == {
        "trainium-m5": {"train.precision", "infer.precision", "compiler.optlevel", "compiler.auto_cast"},
        "trainium-stochastic": {"train.precision"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: gone.yaml\n", "team.yaml: extends 'gone.yaml': "),
        ("extends: team.yaml\n", "team.yaml: extends 'team.yaml' leads back to a file that is being read"),
        ("extends: [a.yaml, b.yaml]\n", "team.yaml: extends must be the path of one config file, got ['a.yaml'"),
    ],
)
def test_a_file_that_extends_nothing_readable_is_named(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(config_file(tmp_path, text))


def test_an_override_beats_the_file_and_earlier_overrides(tmp_path: Path) -> None:
    path = config_file(tmp_path, "seed: 1\n")
    assert load_config(path, ["seed=2"]).seed == 2
    assert load_config(path, ["seed=2", "seed=3"]).seed == 3
    assert load_config(path, ["model={dropout: 0.1, pooling: cls}", "model.dropout=0.2"]).model.dropout == 0.2


@pytest.mark.parametrize("text", ["3e-5", "3.0e-5", "0.00003"])
def test_a_number_may_be_written_in_any_common_form(text: str) -> None:
    assert load_config(overrides=[f"train.learning_rate={text}"]).train.learning_rate == 3e-5


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load_config(overrides=["pipeline=a=b"]).pipeline == "a=b"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("trian.epochs", "unknown key 'trian'; did you mean 'train'?"),
        ("train.lerning_rate", "unknown key 'train.lerning_rate'; did you mean 'train.learning_rate'?"),
        ("model.scratch.layer", "unknown key 'model.scratch.layer'; did you mean 'model.scratch.layers'?"),
        ("validate.min_row", "unknown key 'validate.min_row'; did you mean 'validate.min_rows'?"),
        ("validate_", "unknown key 'validate_'; did you mean 'validate'?"),
        ("heads.classification.inptu", "did you mean 'heads.classification.input'?"),
        ("retry.xyz", "unknown key 'retry.xyz'; known here: attempts, jitter"),
        ("epochs", "did you mean 'train.epochs'?"),
        ("gates", "did you mean 'evaluate.gates' or 'release.gates'?"),
        ("train.holdout_shar", "did you mean 'evaluate.holdout_share'?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path, key: str, message: str) -> None:
    assert refusal(overrides=[f"{key}=1"]).startswith(f"--set {key}=1: ")
    assert message in refusal(overrides=[f"{key}=1"])
    *outer, last = key.split(".")
    text = "".join(f"{'  ' * depth}{part}:\n" for depth, part in enumerate(outer)) + f"{'  ' * len(outer)}{last}: 1\n"
    path = config_file(tmp_path, text)
    assert refusal(path).startswith(f"{path}: ")
    assert message in refusal(path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "--set 'train.epochs': write it as key=value"),
        ("", "--set '': write it as key=value"),
        ("=3", "--set =3: unknown key ''"),
        ("train..epochs=3", "unknown key 'train.'"),
        ("train.checkpoint_every=50", "train.checkpoint_every: write it as '50 steps', '300 seconds' or"),
        ("train.checkpoint_every=0 steps", "write it as '50 steps', '300 seconds' or 'auto' (got '0 steps')"),
        ("features.numeric=[price", "--set value '[price' is not readable as YAML: line 1, column 7: "),
        ("schedule.cron=* * * * *", "needs quotes of its own"),
        ("train.epochs=many", "train.epochs: expected integer above 0, got 'many'"),
        ("train.epochs=0", "train.epochs: expected integer above 0, got 0"),
        ("train.epochs=", "train.epochs: expected integer above 0, got null"),
        ("train.max_tokens=5000", "train.max_tokens: expected a section with the keys query, item, got 5000"),
        ("lineage=Not Good", "lineage: expected text of small letters, digits and -, not - first, got 'Not Good'"),
        ("train.replay.share=1", "train.replay: expected number from 0 below 1, and no keys below it; got share"),
        ("train.workers=yes", "train.workers: expected integer above 0, got true"),
        ("evaluate.gates=[{threshold: true}]", "evaluate.gates.0.threshold: expected number, got true"),
        ("accelerator=gpu", "accelerator: expected one of cpu, cuda, neuron, xla, got 'gpu'"),
        ("compute=locl", "expected one of local, batch, got 'locl'; did you mean 'local'?"),
        ("evaluate.holdout_share=20%", "write 20% as 0.2"),
        ("features.numeric=price", "expected list of text, got 'price'; write [price]"),
        (
            "publish.targets=[{kind: elastic}]",
            "kind: expected one of lancedb, pgvector, qdrant, opensearch, got 'elastic'",
        ),
        ("publish.targets=[{kind: qdrant, name: my-shop}]", "targets.0.name: expected text of small letters, digits"),
        ("publish.targets=[{kind: qdrant, name: my-shop}]", "targets.0: add url"),
        ("publish.targets=[{kind: qdrant, name: a, url: 5}]", "targets.0.url: expected text not empty"),
        ("evaluate.gates=[{tresold: 1}]", "unknown key 'evaluate.gates.0.tresold'; did you mean 'threshold'?"),
    ],
)
def test_a_malformed_override_is_refused_with_its_key(override: str, message: str) -> None:
    assert message in refusal(overrides=[override])


def test_no_wrong_value_is_explained_in_the_words_of_a_library() -> None:
    config = load_config()
    keys = [key.path for key in all_keys(None) if EACH not in key.path and NAME not in key.path]
    said = []
    for key, value in itertools.product(keys, ("[[{a: 1}]]", "-1.5", "{b: 2}", "")):
        try:
            with_overrides(config, [f"{key}={value}"])
        except ConfigError as error:
            said.append(str(error))
    words = r"[Ii]nput (should|tag)|String|should|a valid|instance of|Extra inputs|Field required|tuple"
    assert len(said) > len(keys)
    assert not [each for each in said if re.search(words, each)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"train: [1", "not readable as YAML: line 1, column 10"),
        (b"train:\n\tepochs: 2\n", "not readable as YAML: line 2, column 1: a tab stands where YAML wants blanks"),
        (b"\xff\xfe\x00\x80", "not readable as YAML"),
        (b"- a\n- b\n", "expected keys and values at the top level"),
        (b"", "expected keys and values at the top level"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "team.yaml"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}: {message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere.yaml") == f"{tmp_path / 'nowhere.yaml'}: no such file"


def test_all_wrong_values_are_named_at_once() -> None:
    message = refusal(overrides=["train.epochs=0", "infer.shard_rows=-1"])
    assert "train.epochs: " in message
    assert "infer.shard_rows: " in message


@pytest.mark.parametrize(
    "override",
    [
        "links.reports=http://u:geheim@h/",
        "links.tensorboard=https://h/?%61pi_key=geheim",
        "links.report=http://u:geheim@h/",
        "links.reports=[http://u:geheim@h/]",
        "publish.password=geheim",
        "links.reports: http://u:geheim@h/",
        "links.reports={http://u:geheim@h/",
    ],
)
def test_a_password_in_any_setting_is_refused_and_not_repeated(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[override])
    assert "geheim" not in "".join(traceback.format_exception(caught.value))


def test_a_null_section_can_be_set(tmp_path: Path) -> None:
    assert load_config().heads.classification is None
    head = load_config(overrides=[HEAD]).heads.classification
    assert head is not None
    assert (head.input, head.positive_min) == ("pair", 4.0)
    one_by_one = [f"heads.classification.{key}" for key in ("weight=0.5", "input=pair", "negative_max=2")]
    assert load_config(overrides=[*one_by_one, "heads.classification.positive_min=4"]).heads.classification == head


def test_a_section_can_be_made_null() -> None:
    config = load_config(overrides=["model.scratch=null", "model.pretrained=package:none"])
    assert config.model.scratch is None


@pytest.mark.parametrize("path", [None, *PLACES], ids=lambda path: path.stem if path else "base")
def test_the_yaml_of_a_configuration_loads_again(tmp_path: Path, path: Path | None) -> None:
    config = load_config(path)
    again = load_config(config_file(tmp_path, to_yaml(config)))
    assert again == config
    assert config_hash(again) == config_hash(config)


def test_the_hash_does_not_depend_on_the_spelling_of_settings(tmp_path: Path) -> None:
    spelled = [
        load_config(overrides=["train.learning_rate=3e-5", "train.weight_decay=0"]),
        load_config(overrides=["train={weight_decay: 0.0, learning_rate: 0.00003}"]),
        load_config(config_file(tmp_path, "train: {learning_rate: 3.0e-5, weight_decay: 0.0}\n")),
    ]
    assert len({config_hash(config) for config in spelled}) == 1


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    found = []
    for key, value in tree.items():
        found += leaves(value, (*path, key)) if isinstance(value, dict) else [(".".join((*path, key)), value)]
    return found


# Keys whose other value needs another key too, or is one of a few.
BOUND = {
    "compute": ["compute=batch"],
    **{
        f"{stage}.compute": [f"{stage}.compute=batch"]
        for stage in ("validate", "warmup", "train", "evaluate", "infer", "release")
    },
    "accelerator": ["accelerator=cuda"],
    "features.numeric": ["features.numeric=[a]", "model.interaction.kind=both"],
    "features.categorical": ["features.categorical=[a]", "model.interaction.kind=both"],
    "features.query": ["features={numeric: [a], query: [a]}", "model.interaction.kind=both"],
    "features.entity": ["features.entity=kind"],
    "model.pretrained": ["model.pretrained=package:none", "model.scratch=null"],
    "model.scratch.hidden_size": ["model.scratch.hidden_size=512"],
    "model.pooling": ["model.pooling=cls"],
    "model.embedding_width": ["model.embedding_width=32"],
    "model.interaction.kind": ["model.interaction.kind=both"],
    "model.interaction.deep_widths": ["model.interaction.deep_widths=[256, 128]"],
    "validate.events": ["validate.events={values: {click: {label: 1}}}"],
    "heads.classification": [HEAD],
    "heads.multiclass": ["heads.multiclass={weight: 0.5, input: query, classes: [a, b]}"],
    "heads.regression": ["heads.regression={weight: 0.5, input: query, low: 0, high: 1}"],
    "train.row_weight": ["train.row_weight=worth"],
    "heads.contrastive.positives_only": [HEAD, "heads.contrastive.positives_only=true"],
    "heads.contrastive.negatives": ["heads.contrastive.negatives={per_query: 2}"],
    "heads.contrastive.temperature": ["heads.contrastive.temperature=learnt"],
    "heads.contrastive.matryoshka": ["heads.contrastive.matryoshka=[64]"],
    "model.prompts": ["model.prompts={query: 'query: ', item: ''}"],
    "train.replay": ["train.replay=0.2"],
    "train.batch_by": ["features.categorical=[b]", "model.interaction.kind=both", "train.batch_by=b"],
    "train.averaging": ["train.averaging={ema_half_life_steps: 100}"],
    "train.keep_best": ["train.keep_best={metric: mrr@10, rows: 100, patience: null}"],
    "train.decay_before_release": ["train.decay_before_release={share: 0.2, floor: 0.1}"],
    "train.max_tokens.query": ["train.max_tokens.query=64"],
    "train.sequences": ["train.sequences=64"],
    "train.precision": ["train.precision=bf16"],
    "train.on_new_graph": ["train.on_new_graph=warn"],
    "compiler.target": ["compiler.target=trn2"],
    "compiler.model_type": ["compiler.model_type=generic"],
    "compiler.auto_cast": ["compiler.auto_cast=all"],
    "compiler.auto_cast_type": ["compiler.auto_cast_type=tf32"],
    "compiler.efa": ["compiler.efa=true"],
    "compiler.parallel_jobs": ["compiler.parallel_jobs=4"],
    "validate.drift.severity": ["validate.drift.severity=critical"],
    "validate.suites": [f"validate.suites=[{BASE.with_name('suites') / 'texts.yaml'}]"],
    "validate.expectations": ["validate.expectations=[{expectation: expect_column_to_exist, column: a}]"],
    "evaluate.group": ["evaluate.group=query"],
    "evaluate.near_duplicates.similarity": ["evaluate.near_duplicates.similarity=0.95"],
    "train.sides": ["train.sides=queries"],
    "infer.max_tokens": ["infer.max_tokens=64"],
    "infer.precision": ["infer.precision=bf16"],
    "infer.vectors": ["infer.vectors=fp16"],
    "model.scratch.attention_heads": ["model.scratch.attention_heads=8"],
    "release.min_cosine": ["release.min_cosine=0.5"],
    "model.scratch.max_tokens": ["model.scratch.max_tokens=256"],
}


def changed(key: str, value: Any) -> list[str]:
    if key in BOUND:
        return BOUND[key]
    if isinstance(value, str):
        return [f"{key}={value}x"]
    if value is None:  # a bound of a check
        return [f"{key}=0.99"]
    return [f"{key}={value * 0.9 if isinstance(value, float) and 0 < value < 1 else value + 1}"]


def test_the_hash_changes_with_every_key_of_the_work() -> None:
    keys = leaves(load_config().work())
    assert set(BOUND) <= {key for key, _ in keys}
    seen = {config_hash(load_config()): "base"}
    for key, value in keys:
        if overrides := changed(key, value):
            digest = config_hash(load_config(overrides=overrides))
            assert digest not in seen, f"{key} gives the hash of {seen[digest]}"
            seen[digest] = key
    assert len(seen) == len(keys) + 1  # base


@pytest.mark.parametrize(
    "override",
    [
        "batch.cpu_queue=mine",
        "retry.attempts=9",
        "cost.dollars_per_worker_hour=2",
        "schedule.timezone=Asia/Tokyo",
        "freshness.target_hours=1",
        "links.reports=null",
        "health.min_disk_gib=9",
        "train.workers=2",
        "train.checkpoint_every=7 steps",
        "train.log_every_steps=7",
        "train.watchdog_seconds=7",
        "evaluate.slices=[category]",
        "evaluate.min_slice_rows=7",
        "evaluate.golden=golden.csv",
        "evaluate.gates=[]",
        "infer.workers=2",
        "release.gates=[]",
    ],
)
def test_judging_place_time_and_patience_are_not_in_the_hash(override: str) -> None:
    changed = load_config(overrides=(override,))
    assert changed != load_config()
    assert config_hash(changed) == config_hash(load_config())
    assert changed.same_work_as(load_config())


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "../etc/passwd", "''"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match=r"schedule\.timezone"):
        load_config(overrides=(f"schedule.timezone={zone}",))


def test_a_suite_becomes_part_of_the_configuration(tmp_path: Path) -> None:
    suite = tmp_path / "own.yaml"
    suite.write_text("- {expectation: expect_column_to_exist, column: brand}\n")
    inline = "validate.expectations=[{expectation: expect_column_to_exist, column: locale}]"
    config = load_config(overrides=(f"validate.suites=[{suite}]", inline))
    assert [each.column for each in config.validate_.expectations] == ["brand", "locale"]
    assert config.validate_.suites == ()
    suite.write_text("expectation: expect_column_to_exist\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: expected a list"):
        load_config(overrides=(f"validate.suites=[{suite}]",))
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file"):
        load_config(overrides=("validate.suites=[gone.yaml]",))
