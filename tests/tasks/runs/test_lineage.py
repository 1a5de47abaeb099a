from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder
from tasks.contracts.references import CheckpointState, RowsRef, SpanRef
from tasks.runs.branches import begin
from tasks.runs.lineage import completed, head, is_pruned, partial, prune_checkpoint
from tests.support.fakes.fake_runner import commit_files, write_checkpoint
from tests.support.workspace.states import checkpoint_state


def state(step: int, span: str = "2021-Q1", complete: bool = True, lineage: str = "main") -> CheckpointState:
    rows = RowsRef(span=SpanRef(name=span, version=1), prefix=f"runs/k/validate/rows/{span}", rows=4)
    return checkpoint_state(step, lineage=lineage, run_key="k", complete=complete, consumed=(rows,))


def _all(store: Store, folder: str) -> None:
    store.delete(folder)


class DeletingStore(DirectoryStore):
    """Another process deletes a folder as soon as it was listed."""

    def __init__(self, root: Path, folder: str, delete: Callable[[Store, str], None] = _all) -> None:
        super().__init__(root)
        self._folder, self._delete = folder, delete

    def list(self, prefix: str) -> list[str]:
        found = super().list(prefix)
        if any(key.startswith(self._folder) for key in found):
            self._delete(DirectoryStore(self.root), self._folder)
        return found


def test_a_new_lineage_has_no_head(store):
    assert head(store, "main") is None
    assert completed(store, "main") == []


def test_the_head_is_the_completed_checkpoint_with_the_highest_step(store):
    last = write_checkpoint(store, state(120, "2021-Q2"))
    first = write_checkpoint(store, state(20, "2021-Q1"))
    assert [ref for ref, _ in completed(store, "main")] == [first, last]
    assert head(store, "main") == (last, state(120, "2021-Q2"))


def test_partial_checkpoints_are_no_heads(store):
    done = write_checkpoint(store, state(20))
    write_checkpoint(store, state(30, complete=False))
    assert head(store, "main") == (done, state(20))


def test_partial_checkpoints_are_found(store):
    write_checkpoint(store, state(20))
    assert partial(store, "main") == []
    made = [write_checkpoint(store, state(step, complete=False)).prefix for step in (30, 40)]
    write_checkpoint(store, state(30, complete=False, lineage="other"))
    store.write("lineages/main/step-00000050/state.json", b"{}")
    assert partial(store, "main") == made


def test_a_folder_without_a_manifest_was_never_completed(store):
    done = write_checkpoint(store, state(20))
    store.write("lineages/main/step-00000030/state.json", state(30).to_json())
    found = head(store, "main")
    assert found is not None
    assert found[0] == done


@pytest.mark.parametrize("read", [head, completed, partial])
def test_a_checkpoint_that_its_training_deletes_meanwhile_is_passed_over(store, read):
    """As when a run goes on whose command was killed, and the next command looks where it stands."""
    write_checkpoint(store, state(10))
    write_checkpoint(store, state(20, complete=False))
    found = read(DeletingStore(store.root, "lineages/main/step-00000020"), "main")
    assert not store.list("lineages/main/step-00000020")
    assert found == read(store, "main")


def test_a_checkpoint_that_is_pruned_meanwhile_is_still_known(store):
    write_checkpoint(store, state(10))
    pruned = DeletingStore(store.root, "lineages/main/step-00000010", prune_checkpoint)
    assert [ref.step for ref, _ in completed(pruned, "main")] == [10]
    assert is_pruned(store, completed(store, "main")[0][0])


def test_lineages_are_separate(store):
    write_checkpoint(store, state(20, lineage="main"))
    assert head(store, "mai") is None
    assert head(store, "other") is None


def test_the_reference_names_exact_weights(store, tmp_path):
    here = write_checkpoint(store, state(20))
    there = write_checkpoint(DirectoryStore(tmp_path / "other"), state(20).model_copy(update={"run_key": "other"}))
    assert here.prefix == there.prefix
    assert here.sha256 != there.sha256


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("state.json", b"{", "does not match its checksum"),
        ("state.json", b"", "does not match its checksum"),
        ("state.json", b'{"version": 1}', "does not match its checksum"),
        ("state.json", None, "is gone"),
        ("MANIFEST.json", b"{", "is not a valid manifest"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(store, file, damage, message):
    write_checkpoint(store, state(20))
    store.delete(f"lineages/main/step-00000020/{file}")
    if damage is not None:
        store.write(f"lineages/main/step-00000020/{file}", damage)
    with pytest.raises(CorruptFolder, match=rf"00020/{file} {message}.*move"):
        head(store, "main")


def test_the_way_out_works(store):
    before = write_checkpoint(store, state(20))
    write_checkpoint(store, state(30))
    store.write("lineages/main/step-00000030/state.json", b"{")
    store.move("lineages/main/step-00000030", "elsewhere")
    assert head(store, "main") == (before, state(20))


def test_a_state_of_another_version_names_the_key(store):
    newer = state(20).to_json().decode().replace('"seed": 17', '"seeds": 17')
    commit_files(store, "lineages/main/step-00000020", {"state.json": newer}, "checkpoint")
    with pytest.raises(CorruptFolder, match=r"20/state\.json .*: seed"):
        head(store, "main")


def test_a_branch_has_the_checkpoints_up_to_its_base_and_its_own(store):
    first, second, third = (write_checkpoint(store, state(step)) for step in (10, 20, 30))
    begin(store, "fix", "main", second)
    assert [ref for ref, _ in completed(store, "fix")] == [first, second]
    assert partial(store, "fix") == []
    own = write_checkpoint(store, state(30, lineage="fix"))
    assert [ref for ref, _ in completed(store, "fix")] == [first, second, own]
    assert [ref for ref, _ in completed(store, "main")] == [first, second, third]
    found = head(store, "fix")
    assert found is not None
    assert found[0] == own


def test_a_branch_of_a_branch_inherits_from_both(store):
    first, _ = (write_checkpoint(store, state(step)) for step in (10, 20))
    begin(store, "fix", "main", first)
    second = write_checkpoint(store, state(20, lineage="fix"))
    begin(store, "again", "fix", second)
    assert [ref for ref, _ in completed(store, "again")] == [first, second]
    begin(store, "earlier", "fix", first)
    assert [ref for ref, _ in completed(store, "earlier")] == [first]


def test_a_branch_from_nothing_inherits_nothing(store):
    write_checkpoint(store, state(10))
    begin(store, "fresh", "main", None)
    assert head(store, "fresh") is None


def test_a_branch_with_a_missing_base_is_an_error(store):
    write_checkpoint(store, state(10))
    second = write_checkpoint(store, state(20))
    begin(store, "fix", "main", second)
    store.delete(second.prefix)
    with pytest.raises(CorruptFolder, match=r"step-00000020, .*fix"):
        completed(store, "fix")
