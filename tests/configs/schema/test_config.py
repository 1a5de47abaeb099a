"""The rules between keys; bounds of single keys are pydantic's."""

import pytest

from configs.load import load_config
from tasks.foundation.errors import ConfigError

HEAD = "heads.classification={weight: 0.5, input: pair, negative_max: 2, positive_min: 4}"
AUC = "evaluate.gates=[{metric: auc, direction: higher, threshold: 0.7, baseline: none, severity: critical}]"

EVENTS = "{values: {seen: {label: 0}, click: {label: 3}, buy: {label: 4, weight: 5}}}"

MACHINE = (
    "health.machines.mine={devices: 1, efa_interfaces: 0, min_node_bus_gb_s: 0, min_bus_gb_s: 0, max_latency_us: 9}"
)

REFUSED = {
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
    "workers that fill no node": ["compute=batch", "batch.processes_per_node=32", "train.workers=4"],
    "workers of this machine": ["batch.processes_per_node=2", "infer.workers=3"],
    "own machine": [MACHINE, "health.machine=mine"],
    "events": [HEAD, f"validate.events={EVENTS}", "train.row_weight=event_weight"],
    "events that are all hits": ["validate.events={values: {click: {label: 1}, cart: {label: 1}}}"],
    "the compiler's own level": ["compiler.optlevel=null"],
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
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
