import inspect
from typing import Any

import pytest

from configs.load import load_config
from configs.schema.expectations import KNOWN, REFUSED, class_name
from tasks.foundation.errors import ConfigError
from tasks.gates.expectations import load_great_expectations

OWN = {"id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content", "severity"}
OWN |= {"windows", "batch_id", "row_condition", "condition_parser", "column", "mostly", "library_metadata"}


def classes() -> dict[str, Any]:
    core = load_great_expectations().expectations.core
    return {name: one for name, one in inspect.getmembers(core, inspect.isclass) if name.startswith("Expect")}


def test_every_expectation_of_the_library_is_known_or_refused():
    assert {class_name(name) for name in (*KNOWN, *REFUSED)} >= {
        name for name in classes() if name != "ExpectColumnKLDivergenceToBeLessThan"
    }
    assert not set(KNOWN) & set(REFUSED)


@pytest.mark.parametrize("name", KNOWN)
def test_arguments_are_those_of_the_library(name: str):
    fields = classes()[class_name(name)].__fields__
    known = KNOWN[name]
    assert set(known.needed) | set(known.optional) <= set(fields) - OWN
    assert {field for field, of in fields.items() if of.required and field not in OWN} <= set(known.needed)
    assert known.column == ("column" in fields)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{expectation: expect_column_values_to_be_inset, column: a}", "nearest are expect_column_values_to_be_in_set"),
        ("{expectation: expect_column_median_to_be_between, column: a}", "needs all rows at once"),
        ("{expectation: expect_column_values_to_be_in_set, column: a}", "needs the argument value_set"),
        ("{expectation: expect_column_values_to_be_in_set, arguments: {value_set: [b]}}", "needs a column"),
        ("{expectation: expect_column_values_to_not_be_null, column: a, arguments: {b: 1}}", "has no argument 'b'"),
        ("{expectation: expect_table_row_count_to_equal, arguments: {value: many}}", "value must be int, got 'many'"),
        ("{expectation: expect_column_mean_to_be_between, column: a}", "needs min_value, max_value or both"),
        (
            "{expectation: expect_column_mean_to_be_between, column: a, arguments: {min_value: 2, max_value: 1}}",
            "min_value 2 is above max_value 1",
        ),
        (
            "{expectation: expect_column_values_to_match_regex, column: a, arguments: {regex: '('}}",
            "not a regular expression",
        ),
        ("{expectation: expect_column_to_exist, column: a, quarantine: true}", "judges no single rows"),
    ],
)
def test_an_expectation_that_can_not_be_judged_is_refused_on_loading(entry: str, message: str):
    with pytest.raises(ConfigError, match=r"validate\.expectations\.0") as raised:
        load_config(overrides=(f"validate.expectations=[{entry}]",))
    assert message in str(raised.value)
