import pytest

from tasks.contracts.jobs import address, cut_address
from tasks.foundation.errors import ConfigError

KEY = "runs/f00d/train/attempt-1/spec.json"
SHA256 = "0a" * 32


@pytest.mark.parametrize("workspace", ["/w", "/a #1/b#", f"/a#{KEY}#{SHA256}", "/new\nline", "s3://bucket/pre#fix"])
@pytest.mark.parametrize("key", [KEY, f"{KEY}#{SHA256}"])
def test_a_spec_is_found_again_in_a_workspace_of_any_name(workspace, key):
    assert cut_address(address(workspace, key)) == (workspace, key)


@pytest.mark.parametrize("word", ["", "/w", f"/w/{KEY}", f"/w#{KEY}#5f", "/w#"])
def test_a_word_that_is_no_address_is_refused(word):
    with pytest.raises(ConfigError, match="WORKSPACE#KEY"):
        cut_address(word)
