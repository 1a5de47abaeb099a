"""The rules for a single row: each reason for which it can be bad."""

import sys
from collections.abc import Iterator
from typing import NamedTuple

from configs.schema.config import Config
from tasks.data.canonical import MOST_ID_BYTES
from tasks.data.rows import CORE, ITEM, ITEM_ID, LABEL, QUERY
from tasks.quality.expectations import Expectation, between, not_null


class Rule(NamedTuple):
    """One reason for a row to be bad, the name of `expectation`. The rules of one `check` are reported together."""

    check: str
    expectation: Expectation

    @property
    def reason(self) -> str:
        return self.expectation.name


def row_rules(config: Config) -> list[Rule]:
    """Return the rules for a single row. NaN has become null before, and null passes any range."""
    limits = config.validate_
    rules = [
        Rule(f"{column} present", not_null(f"{column} is null", f"value:{column}"))
        for column in CORE
        if column != LABEL
    ]
    rules.append(Rule("time in its span", between("time is outside of its span", "outside", 0, 0)))
    low, high = limits.min_text_chars, limits.max_text_chars
    for text in (QUERY, ITEM):
        short = f"{text} is empty" if low == 1 else f"{text} shorter than {low} characters"
        rules += [
            Rule(f"{text} length", between(short, f"characters:{text}", low, None)),
            Rule(f"{text} length", between(f"{text} longer than {high} characters", f"characters:{text}", None, high)),
        ]
    rules.append(Rule(f"{ITEM_ID} length", between(f"{ITEM_ID} is blank", f"characters:{ITEM_ID}", 1, None)))
    long = f"{ITEM_ID} longer than {MOST_ID_BYTES} bytes"  # a release of it could not be published
    rules.append(Rule(f"{ITEM_ID} length", between(long, f"bytes:{ITEM_ID}", None, MOST_ID_BYTES)))
    rules += [
        Rule(f"{column} without NUL", between(f"{column} has a NUL character", f"nul:{column}", 0, 0))
        for column in (QUERY, ITEM, ITEM_ID)
    ]
    rules += [
        Rule(f"{column} readable", between(f"{column} is not a number", f"unreadable:{column}", 0, 0))
        for column in config.features.numeric
    ]
    rules += [
        Rule(f"{column} usable", between(f"{column} {why}", f"unusable:{key}", 0, 0))
        for key, column, why in _label_rules(config)
    ]
    ranges = dict.fromkeys(config.features.numeric, (limits.numeric_min, limits.numeric_max))
    ranges[LABEL] = (limits.label_min, limits.label_max)
    for column, (low, high) in ranges.items():
        # An infinite bound would let an infinite value through.
        low, high = max(low, -sys.float_info.max), min(high, sys.float_info.max)
        rules += [
            Rule(f"{column} range", between(f"{column} below {low:.10g}", f"value:{column}", low, None)),
            Rule(f"{column} range", between(f"{column} above {high:.10g}", f"value:{column}", None, high)),
        ]
    return rules


def _label_rules(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield for each column of labels or weights: its configuration key, the column, and the fault of a bad value."""
    for name, head in config.heads.of_labels.items():
        yield f"heads.{name}.column", head.column, head.why_not
    if config.train.row_weight is not None:
        yield "train.row_weight", config.train.row_weight, "is no weight, a number from 0 on"


ID_RULES = [
    Rule("row_id unique", between("row_id repeats an earlier row of the span", "repeated", 0, 0)),
    Rule("row_id in one span", between("row_id is in an earlier span of the window", "elsewhere", 0, 0)),
]
