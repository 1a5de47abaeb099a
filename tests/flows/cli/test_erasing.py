"""The options of `millrace erase`, and its certificate for people."""

from __future__ import annotations

import pytest

from flows.cli.erasing import _asked
from tasks.foundation.errors import ConfigError


@pytest.mark.parametrize(
    ("item", "where", "expected"),
    [
        ("p=1", None, ("item_id", "p=1")),
        (None, "user_id=4711", ("user_id", "4711")),
        (None, "url=a=b", ("url", "a=b")),
    ],
)
def test_an_item_or_a_column_with_its_value(item, where, expected):
    assert _asked(item, where) == expected


@pytest.mark.parametrize(
    ("item", "where"), [(None, None), ("a", "b=c"), (None, "user_id"), (None, "=a"), (None, "a="), ("", None)]
)
def test_nothing_is_erased_on_half_an_order(item, where):
    with pytest.raises(ConfigError, match="--where"):
        _asked(item, where)
