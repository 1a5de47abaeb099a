from typing import Any

import pytest
from pydantic import ValidationError

from configs.load import load_config
from configs.schema.gates import GateConfig
from tasks.foundation.errors import ConfigError

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
    with pytest.raises(ConfigError, match=r"is of the golden set, and evaluate\.golden names no file"):
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
    with pytest.raises(ConfigError, match="names width 256, and the embedding is 256 wide"):
        load_config(overrides=[f"evaluate.gates=[{{{gate}, width: 256}}]"])


@pytest.mark.parametrize(
    "more", ["confidence: 0.9", "span: newest", "slice: locale", "min_rows: 9", "width: 8", "baseline: best"]
)
def test_a_gate_of_the_release_takes_only_what_its_search_can_tell(more: str) -> None:
    gate = "metric: recall@10, direction: higher, threshold: 0, baseline: champion, severity: critical"
    assert load_config(overrides=[f"release.gates=[{{{gate}}}]"]).release.gates
    with pytest.raises(
        ConfigError, match=r"release\.gates.*put rows, queries, slice, span, width, min_rows and confidence into"
    ):
        load_config(overrides=[f"release.gates=[{{<<: {{{gate}}}, {more}}}]"])
