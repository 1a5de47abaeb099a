import pytest

from configs.load import load_config
from configs.schema.validation import REFUSED, SCOPES
from tasks.foundation.errors import ConfigError
from tasks.quality.expectations import load_great_expectations


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
