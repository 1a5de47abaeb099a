"""The simulated stores do what every store must do: the contract of tests/infra/store/test_store.py, on both."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.base import Store
from tests.infra.store.test_store import (  # noqa: F401
    test_a_folder_is_not_an_object,
    test_a_key_never_leaves_the_workspace,
    test_a_lock_excludes_a_second_holder_until_it_is_left,
    test_a_lock_is_left_when_its_block_fails,
    test_a_written_object_is_read_back,
    test_an_absent_object_is_not_listed_and_cannot_be_read,
    test_an_upload_goes_only_where_nothing_is_or_in_place_of_what_was_seen,
    test_create_refuses_an_object_that_is_there,
    test_delete_removes_an_object_or_a_folder_and_nothing_else,
    test_each_holder_of_a_lock_has_a_later_term,
    test_list_gives_all_keys_below_a_folder_in_order_and_no_neighbours,
    test_move_moves_a_folder_or_an_object,
    test_move_replaces_nothing,
    test_only_what_was_seen_is_discarded,
    test_sizes_are_those_of_the_objects_of_a_folder,
    test_swap_of_an_absent_object_with_an_expectation_loses,
    test_swap_replaces_only_the_expected_content,
    test_upload_copies_and_local_reads,
)
from tests.simulation.objects import Objects
from tests.simulation.stores import RULES


@pytest.fixture(params=RULES)
def store(request: pytest.FixtureRequest) -> Store:
    return RULES[request.param](Objects())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"new content")
    return path
