"""The rules between keys and of single sections; bounds of single keys are pydantic's.

Settings and inputs that do not decide the result say so on their field, where it has an effect. No password gets into a
configuration, or into an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from configs.load import config_hash, load_config
from configs.schema.config import Config
from configs.schema.gates import GateConfig
from configs.schema.validation import REFUSED, SCOPES
from tasks.contracts.jobs import Inputs
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record, beside, decides
from tasks.quality.expectations import load_great_expectations

HEAD = "heads.classification={weight: 0.5, input: pair, negative_max: 2, positive_min: 4}"
AUC = "evaluate.gates=[{metric: auc, direction: higher, threshold: 0.7, baseline: none, severity: critical}]"

EVENTS = "{values: {seen: {label: 0}, click: {label: 3}, buy: {label: 4, weight: 5}}}"

MACHINE = (
    "health.machines.mine={devices: 1, efa_interfaces: 0, min_node_bus_gb_s: 0, min_bus_gb_s: 0, max_latency_us: 9}"
)

REFUSED_KEYS = {
    "rows and workers": (["train.workers=3"], "train.batch_rows 64 must be a multiple of train.workers 3"),
    "sequences and workers": (
        ["train.workers=2", "train.sequences=31"],
        "train.sequences 31 must be a multiple of train.workers 2",
    ),
    "query longer than a sequence": (
        ["train.max_tokens.query=129"],
        "train.max_tokens 129 is longer than train.sequence_tokens 128",
    ),
    "item longer than a sequence": (
        ["train={max_tokens: {query: 16, item: 33}, sequence_tokens: 32}"],
        "train.max_tokens 33 is longer than train.sequence_tokens 32",
    ),
    "served text longer than a sequence": (
        ["infer.sequence_tokens=64"],
        "infer.max_tokens 128 is longer than infer.sequence_tokens 64",
    ),
    "no encoder": (["model.scratch=null"], "give model.pretrained or model.scratch"),
    "no head": (["heads.contrastive=null"], "at least one of heads.contrastive, heads.classification"),
    "positives unknown": (["heads.contrastive.positives_only=true"], "positives_only needs heads.classification"),
    "classes overlap": ([HEAD, "heads.classification.negative_max=4.5"], "negative_max must be below positive_min"),
    "classes touch": ([HEAD, "heads.classification.negative_max=4"], "negative_max must be below positive_min"),
    "features unused": (["features.numeric=[price]"], "features reach the embedding through model.interaction"),
    "categories unused": (["features.categorical=[locale]"], "features reach the embedding through model.interaction"),
    "query feature unknown": (
        ["features={numeric: [price], query: [locale]}", "model.interaction.kind=both"],
        "features.query names ['locale'], which is in neither numeric nor categorical",
    ),
    "class twice": (["heads.multiclass={weight: 1, input: query, classes: [1, 1.0]}"], "names 1 twice"),
    "one word for classes": (["heads.multiclass={weight: 1, input: query, classes: ab}"], "must be a list"),
    "scale turned": (["heads.regression={weight: 1, input: query, low: 3, high: 3}"], "low 3 must be below high 3"),
    "label is a text": (
        ["heads.regression={weight: 1, input: query, column: item, low: 0, high: 3}"],
        "heads.regression.column is item, a text, an id or the time",
    ),
    "entity is a text": (["features.entity=query"], "features.entity is query, a text, an id or the time"),
    "prompts of unknown things": (
        ["model.prompts={by_entity: {de: {query: f}}}"],
        "model.prompts.by_entity needs features.entity, the column that says",
    ),
    "weight is an id": (["train.row_weight=row_id"], "train.row_weight is row_id, a text, an id or the time"),
    "names and numbers": (
        ["heads.multiclass={weight: 1, input: query, column: kind, classes: [a, b]}", "train.row_weight=kind"],
        "train.row_weight reads column kind as numbers, and heads.multiclass.column as names",
    ),
    "labels of events unread": ([f"validate.events={EVENTS}"], "nothing reads them, so each row would be a hit"),
    "weights of events unread": (
        [HEAD, f"validate.events={EVENTS}"],
        "validate.events gives buy a weight, which counts with train.row_weight=event_weight; train.row_weight is null",
    ),
    "events are texts": (
        [HEAD, f"validate.events={EVENTS}", "validate.events.column=query", "train.row_weight=event_weight"],
        "validate.events.column is query; name a column with the event",
    ),
    "gate without its head": (
        ["evaluate.gates=[{metric: rmse, direction: lower, threshold: 1, baseline: none, severity: critical}]"],
        "the gate on rmse needs heads.regression, which is null",
    ),
    "gate without head": ([AUC], "the gate on auc needs heads.classification, which is null"),
    "gate on nothing": ([AUC.replace("auc", "recall@7")], "unknown metric; use one of recall@1, recall@10"),
    "long query": (
        ["train={max_tokens: {query: 129}, sequence_tokens: 256}"],
        "a text of 129 tokens is longer than model.scratch.max_tokens 128; lower train.max_tokens and infer.max_tokens",
    ),
    "long item": (
        ["train={max_tokens: {item: 200}, sequence_tokens: 256}"],
        "a text of 200 tokens is longer than model.scratch.max_tokens 128",
    ),
    "long vectors": (
        ["infer={max_tokens: 256, sequence_tokens: 256}"],
        "a text of 256 tokens is longer than model.scratch.max_tokens",
    ),
    "attention heads": (["model.scratch.attention_heads=3"], "model.scratch.hidden_size must be a multiple"),
    "share above one": (["validate.max_bad_share=1.5"], "validate.max_bad_share: "),
    "no holdout": (["evaluate.holdout_share=0"], "evaluate.holdout_share: "),
    "workers and nodes": (
        ["compute=batch", "batch.processes_per_node=2", "infer.workers=3"],
        "infer.workers 3 must be a multiple of batch.processes_per_node 2, or below it",
    ),
    "definition of no stage": (["batch.definition=millrace"], "batch.definition 'millrace' must hold {stage}"),
    "unknown machine": (["health.machine=trn9"], "health.machine 'trn9' is not in health.machines: trn1.32xlarge"),
    "optimisation level": (["compiler.optlevel=4"], "compiler.optlevel: expected one of 1, 2, 3 or null, got 4"),
}
ALLOWED = {
    "rows and workers": ["train.workers=4"],
    "sequences of more tokens than positions": ["train.sequence_tokens=512", "infer.sequence_tokens=512"],
    "sequences and workers": ["train.workers=2", "train.sequences=32"],
    "own encoder": ["model.pretrained=/bert"],
    "long texts, own encoder": ["model.pretrained=/bert", "train={max_tokens: {query: 512}, sequence_tokens: 512}"],
    "one head": ["heads.contrastive=null", HEAD],
    "gate with head": [HEAD, AUC],
    "positives known": [HEAD, "heads.contrastive.positives_only=true"],
    "features used": ["features={numeric: [price], query: [price]}", "model.interaction.kind=explicit"],
    "texts that just fit": ["train.max_tokens={query: 128, item: 128}"],
    "workers that fill nodes": ["compute=batch", "batch.processes_per_node=2", "infer.workers=4"],
    "workers with all cores of a node": [
        "compute=batch",
        "batch.processes_per_node=2",
        "validate.workers=3",
        "release.workers=3",
    ],
    "workers that fill no node": ["compute=batch", "batch.processes_per_node=32", "train.workers=4"],
    "workers of this machine": ["batch.processes_per_node=2", "infer.workers=3"],
    "own machine": [MACHINE, "health.machine=mine"],
    "events": [HEAD, f"validate.events={EVENTS}", "train.row_weight=event_weight"],
    "events that are all hits": ["validate.events={values: {click: {label: 1}, cart: {label: 1}}}"],
    "the compiler's own level": ["compiler.optlevel=null"],
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED_KEYS.values(), ids=REFUSED_KEYS)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(overrides=overrides)
    assert str(error.value).startswith("configuration: ")
    assert message in str(error.value)


@pytest.mark.parametrize("overrides", ALLOWED.values(), ids=ALLOWED)
def test_settings_that_agree_are_accepted(overrides: list[str]) -> None:
    load_config(overrides=overrides)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_a_setting_beside_the_work_leaves_the_work_as_it_is() -> None:
    config = load_config()
    for changed in ("train.workers=2", "health.strikes=9", "evaluate.gates=[]", "train.log_every_steps=7"):
        assert load_config(overrides=[changed]).same_work_as(config), changed
    for changed in ("train.epochs=9", "seed=8", "evaluate.max_rows=99"):
        assert not load_config(overrides=[changed]).same_work_as(config), changed


def test_only_sections_their_keys_and_inputs_say_that_they_do_not_decide() -> None:
    deeper = [
        f"{section.__name__}: {name}"
        for field in Config.model_fields.values()
        for section in _records(field.annotation)
        for inner in section.model_fields.values()
        for record in _records(inner.annotation)
        for name in _beside(record)
    ]
    deeper += [
        f"{kind.__name__}: {name}"
        for kind in get_args(Inputs)
        for field in kind.model_fields.values()
        for record in _records(field.annotation)
        for name in _beside(record)
    ]
    assert deeper == [], "nobody asks these fields; say it on the key of the section, or on the input"


def test_a_field_decides_unless_it_says_otherwise() -> None:
    class Given(Record):
        made_of: str
        told: str = beside(default="", description="where to")

    assert {name: decides(field) for name, field in Given.model_fields.items()} == {"made_of": True, "told": False}


def _beside(record: type[Record]) -> list[str]:
    return [name for name, field in record.model_fields.items() if not decides(field)]


def _records(annotation: object) -> Iterator[type[Record]]:
    """The records in a type, and all records inside them."""
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _records(field.annotation)
    for part in get_args(annotation):
        yield from _records(part)


def test_every_expectation_of_the_library_is_known_or_refused():
    core = vars(load_great_expectations().expectations.core)
    names = {"".join(part.capitalize() for part in name.split("_")) for name in (*SCOPES, *REFUSED)}
    assert names >= {name for name in core if name.startswith("Expect")} - {"ExpectColumnKLDivergenceToBeLessThan"}
    assert not set(SCOPES) & set(REFUSED)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{expectation: expect_column_values_to_be_inset, column: a}", "nearest are expect_column_values_to_be_in_set"),
        ("{expectation: expect_column_median_to_be_between, column: a}", "needs all rows at once"),
        ("{expectation: expect_table_row_count_to_equal, arguments: {value: many}}", "must be a number, got 'many'"),
        ("{expectation: expect_table_row_count_to_equal, arguments: {min_value: 1}}", "has no argument 'min_value'"),
        ("{expectation: expect_column_mean_to_be_between, column: a}", "needs min_value or max_value"),
        (
            "{expectation: expect_column_mean_to_be_between, column: a, arguments: {min_value: 2, max_value: 1}}",
            "min_value 2 is above max_value 1",
        ),
        ("{expectation: expect_column_to_exist, column: a, quarantine: true}", "judges no single rows"),
    ],
)
def test_an_expectation_that_can_not_be_judged_is_refused_on_loading(entry: str, message: str):
    with pytest.raises(ConfigError, match=r"validate\.expectations\.0") as raised:
        load_config(overrides=(f"validate.expectations=[{entry}]",))
    assert message in str(raised.value)


BASE = {
    "metric": "recall@10",
    "direction": "higher",
    "threshold": -0.01,
    "baseline": "champion",
    "severity": "critical",
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"relative": True, "baseline": "none"}, "relative to what?"),
        ({"rows": "golden", "span": "newest"}, "rows of the golden set have neither slice nor span"),
        ({"rows": "golden", "slice": "locale"}, "rows of the golden set have neither slice nor span"),
        ({"rows": "golden", "queries": "unseen"}, "rows of the golden set have neither slice nor span"),
        ({"of": "champion"}, "compares the champion with itself"),
        ({"of": "champion", "metric": "same_item_cosine", "baseline": "none"}, "its gate is not of a champion"),
        ({"slice": "=de"}, "name a column and a value, as in locale=de"),
        ({"confidence": 0.5}, "greater than 0.5"),
        ({"confidence": 95}, "less than 1"),
        ({"metric": "loss", "width": 8}, "only ranking metrics are measured by width: recall@1, recall@10"),
        ({"metric": "effective_rank", "confidence": 0.9}, "computed over all vectors"),
        ({"metric": "effective_rank", "slice": "locale"}, "computed over all vectors"),
    ],
)
def test_what_can_not_be_judged_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("?", r"\?")):
        GateConfig.model_validate({**BASE, **changes})


def test_a_gate_on_the_golden_set_needs_one() -> None:
    gate = "{metric: recall@10, direction: higher, threshold: 0.8, baseline: none, rows: golden, severity: critical}"
    assert load_config(overrides=["evaluate.golden=golden.csv", f"evaluate.gates=[{gate}]"]).evaluate.gates
    with pytest.raises(ConfigError, match=r"evaluate\.golden names"):
        load_config(overrides=[f"evaluate.gates=[{gate}]"])


def test_a_slice_is_a_column_with_or_without_a_value() -> None:
    each, one, odd = (GateConfig.model_validate({**BASE, "slice": text}) for text in ("locale", "locale=de", "a=b=c"))
    assert (each.slice_column, each.slice_value) == ("locale", None)
    assert (one.slice_column, one.slice_value) == ("locale", "de")
    assert (odd.slice_column, odd.slice_value) == ("a", "b=c")


def test_a_gate_by_width_needs_a_narrower_one_than_the_embedding() -> None:
    gate = "metric: recall@10, direction: higher, threshold: 0.5, baseline: none, severity: critical"
    widths = "heads.contrastive.matryoshka=[32, 64]"
    config = load_config(overrides=[f"evaluate.gates=[{{{gate}, width: 64}}, {{{gate}, width: 16}}]", widths])
    assert config.measured_widths == (16, 32, 64)
    with pytest.raises(ConfigError, match=r"names width 256"):
        load_config(overrides=[f"evaluate.gates=[{{{gate}, width: 256}}]"])


@pytest.mark.parametrize(
    "more", ["confidence: 0.9", "span: newest", "slice: locale", "min_rows: 9", "width: 8", "baseline: best"]
)
def test_a_gate_of_the_release_takes_only_what_its_search_can_tell(more: str) -> None:
    gate = "metric: recall@10, direction: higher, threshold: 0, baseline: champion, severity: critical"
    assert load_config(overrides=[f"release.gates=[{{{gate}}}]"]).release.gates
    with pytest.raises(ConfigError, match=r"(?s)release\.gates.*width"):
        load_config(overrides=[f"release.gates=[{{<<: {{{gate}}}, {more}}}]"])


PG = "publish.targets=[{{kind: pgvector, name: shop, dsn: '{}'}}]"


@pytest.mark.parametrize(
    "setting",
    [
        PG.format("postgresql://writer:geheim@db/shop"),
        PG.format("host=db user=writer password=geheim"),
        PG.format("host=db user=writer PASSWORD = geheim"),
        PG.format("postgresql://writer@db/shop?password=geheim"),
        "publish.targets=[{kind: qdrant, name: shop, url: 'https://key:geheim@db:6333'}]",
        "publish.targets=[{kind: pgvector, name: shop, dsn: 'host=db', password: geheim}]",
        PG.format("postgresql://writer@db/shop?%70assword=geheim"),
        "publish.targets=[{kind: qdrant, name: shop, url: 'https://db:6333?api_key=geheim'}]",
        "publish.targets=[{kind: lancedb, name: shop, uri: 'db://shop?api_key=geheim'}]",
    ],
)
def test_a_password_is_refused_and_not_repeated(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"publish\.targets\.0") as caught:
        load_config(overrides=[setting])
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "more", "message"),
    [
        ("[{kind: lancedb, name: a, uri: l}, {kind: lancedb, name: a, uri: m}]", (), "two targets are named a"),
        ("[{kind: lancedb, name: 'a; drop', uri: l}]", (), "targets.0.name"),
        ("[{kind: solr, name: a, uri: l}]", (), "lancedb, pgvector, qdrant, opensearch"),
        ("[{kind: lancedb, name: a, uri: l}]", ("publish.compute=batch",), "target a of publish.targets is a folder"),
        ("[{kind: qdrant, name: a, url: q}]", ("compute=batch",), "target a of publish.targets is a folder"),
        ("[{kind: qdrant, name: a, url: q, form: int8}]", (), "Qdrant's quantisation is not offered"),
        ("[{kind: pgvector, name: a, dsn: d, form: int8}]", (), "targets.0.form: expected binary or null"),
        (
            "[{kind: lancedb, name: a, uri: l, width: 48}]",
            ("heads.contrastive.matryoshka=[32, 64]",),
            "48 numbers, at which no model is trained; the widths of heads.contrastive.matryoshka are: 32, 64",
        ),
    ],
)
def test_settings_that_can_not_be_published_with_are_refused(targets: str, more: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"publish.targets={targets}", *more])
    assert message in str(caught.value)


def test_where_releases_are_published_is_no_part_of_the_work() -> None:
    plain = load_config()
    published = load_config(overrides=[PG.format("postgresql://writer@db/shop"), "publish.min_recall=0.8"])
    assert config_hash(published) == config_hash(plain)
    assert published.same_work_as(plain)


KEEP = "train.keep_best={{metric: {metric}, rows: 10, patience: {patience}}}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("train.replay=1",), "train.replay"),
        (("train.averaging={}",), "takes one of ema_half_life_steps and merge_with_parent"),
        (("train.averaging={ema_half_life_steps: 3, merge_with_parent: 0.3}",), "takes one of"),
        (("train.decay_before_release={share: 0.2, floor: 0}",), "train.decay_before_release.floor"),
        ((KEEP.format(metric="effective_rank", patience=1),), "effective_rank is not measured in training"),
        ((KEEP.format(metric="auc", patience=1),), "train.keep_best on auc needs heads.classification"),
        (
            (KEEP.format(metric="mrr@10", patience=1), "train.decay_before_release={share: 0.2, floor: 0.1}"),
            "may end a run before train.decay_before_release has begun",
        ),
    ],
)
def test_settings_that_can_not_work_are_refused(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=settings)
    assert message in str(caught.value)


def test_a_new_key_has_a_default_since_plans_of_before_lack_it() -> None:
    """Only the keys of the first version may lack a default: an older plan has no later key."""
    needed = set((Path(__file__).parent / "needed_keys.txt").read_text(encoding="utf-8").split())
    assert set(_needed(Config)) - needed == set()


def _needed(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The keys that a record of the model must have, in the sections that it must have."""
    for name, field in model.model_fields.items():
        if field.is_required():
            key = f"{above}{field.alias or name}"
            yield key
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from _needed(field.annotation, f"{key}.")
