import pytest

from infra.store.base import Conflict
from tasks.contracts.references import CheckpointRef
from tasks.foundation.errors import StoreError
from tasks.runs.branches import active, adopt, begin, branch_of

BASE = CheckpointRef(prefix="lineages/main/step-00000010", step=10, sha256="a" * 64)


def test_a_lineage_without_branches_continues_itself(store):
    assert active(store, "main") == "main"
    assert branch_of(store, "main") is None


@pytest.mark.parametrize("base", [BASE, None])
def test_a_branch_names_its_lineage_and_base(store, base):
    begin(store, "fix", "main", base)
    begin(store, "fix", "main", base)
    branch = branch_of(store, "fix")
    assert branch is not None
    assert (branch.of, branch.base) == ("main", base)
    assert active(store, "main") == "main"


def test_a_branch_cannot_begin_at_two_bases(store):
    begin(store, "fix", "main", BASE)
    with pytest.raises(Conflict, match=r"lineages/fix/BRANCH\.json"):
        begin(store, "fix", "main", None)
    assert branch_of(store, "fix") is not None


def test_adopting_moves_the_pointer_once(store):
    adopt(store, "main", "fix", instead_of="main")
    adopt(store, "main", "fix", instead_of="main")
    assert active(store, "main") == "fix"
    adopt(store, "main", "later", instead_of="fix")
    assert active(store, "main") == "later"


def test_an_overtaken_branch_is_not_adopted(store):
    adopt(store, "main", "other", instead_of="main")
    with pytest.raises(Conflict, match="other now, no longer main"):
        adopt(store, "main", "fix", instead_of="main")
    assert active(store, "main") == "other"


def test_one_of_two_adoptions_at_once_wins(store, monkeypatch):
    swap = store.swap

    def slow(key, data, expected):
        monkeypatch.setattr(store, "swap", swap)
        adopt(store, "main", "other", instead_of="main")
        swap(key, data, expected)

    monkeypatch.setattr(store, "swap", slow)
    with pytest.raises(Conflict):
        adopt(store, "main", "fix", instead_of="main")
    assert active(store, "main") == "other"


@pytest.mark.parametrize(
    ("key", "read"), [("BRANCH", branch_of), ("ACTIVE", active)], ids=["the branch", "the pointer"]
)
@pytest.mark.parametrize("damage", [b"", b"{", b'{"branches": 1}'])
def test_a_damaged_record_is_named(store, key, read, damage):
    store.write(f"lineages/main/{key}.json", damage)
    with pytest.raises(StoreError, match=rf"lineages/main/{key}\.json"):
        read(store, "main")
