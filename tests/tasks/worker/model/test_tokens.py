import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import BertNormalizer

from tasks.foundation.errors import ConfigError
from tasks.worker.model.tokens import SPECIAL_TOKENS, TokenLists, load_tokenizer, tokenize, train_tokenizer

TEXTS = ["a red lamp", "a blue lamp", "two red chairs", "Ein grüner Stuhl", "a green chair"] * 3
TRAIN = """
from tasks.worker.model.tokens import train_tokenizer
print(train_tokenizer(iter({texts!r}), 120).to_str())
"""


def lists_of(*texts: list[int], pad: int = 0) -> TokenLists:
    offsets = np.cumsum([0, *(len(text) for text in texts)])
    return TokenLists(np.array([token for text in texts for token in text], dtype=np.int32), offsets, pad)


@given(st.lists(st.lists(st.integers(1, 99), max_size=9), min_size=1, max_size=9), st.data())
def test_the_tokens_of_some_rows_are_theirs_and_padding_has_none(texts: list[list[int]], data: st.DataObject):
    rows = data.draw(st.lists(st.integers(-1, len(texts) - 1), max_size=12))
    tokens = lists_of(*texts)
    assert tokens.lengths.tolist() == [len(text) for text in texts]
    found, offsets = tokens.of(np.array(rows, dtype=np.int64))
    assert (found.dtype, offsets.dtype) == (np.int32, np.int64)
    expected = [texts[row] if row >= 0 else [] for row in rows]
    assert [each.tolist() for each in np.split(found, offsets[1:-1])] == (expected or [[]])


def test_special_tokens_have_berts_numbers_and_enclose_each_text():
    tokenizer = train_tokenizer(iter(TEXTS), 100)
    assert [tokenizer.token_to_id(name) for name in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert tokenizer.get_vocab_size() <= 100
    tokens = tokenizer.encode("A RED lamp").tokens
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")
    assert tokenizer.encode("A RED lamp").ids == tokenizer.encode("a red lamp").ids


def test_the_same_texts_give_the_same_tokenizer_in_any_process():
    code = TRAIN.format(texts=TEXTS)
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert there.stdout.strip() == train_tokenizer(iter(TEXTS), 120).to_str()


def test_tokenize_cuts_to_the_limit_and_keeps_the_end_mark():
    tokenizer = train_tokenizer(iter(TEXTS), 100)
    before = tokenizer.to_str()
    tokens = tokenize(tokenizer, ["a red lamp " * 20, "lamp", ""], 6, pad=0)
    assert len(tokens) == 3
    assert tokens.lengths[0] == 6
    assert tokens.ids[tokens.offsets[1] - 1] == 3
    assert tokens.lengths[2] == 2, "an empty text is its two marks"
    assert tokenizer.to_str() == before, "a limit that stayed would be saved with the next checkpoint"


# Letters in both cases, marks of other languages, control characters, and tokens that the library finds before it
# lowers a text, or only after.
PIECES = [
    "Red ",
    "LAMP",
    "stühle",
    "İ",
    "灯",
    "e\u0301",
    "\t",
    "\x00",
    "\x7f",
    "[SEP]",
    "[sep]",
    "[",
    "sep]",
    "<S>",
    "<s>",
    "!",
]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    """One as trained here, and ones as pretrained folders have them."""
    found = {name: train_tokenizer(iter(TEXTS), 100) for name in ("trained", "more tokens", "cased", "none")}
    found["more tokens"].add_tokens(["<s>", "LAMPS", AddedToken("Éclair", normalized=True)])
    found["cased"].normalizer = BertNormalizer(lowercase=False)
    found["none"].normalizer = None  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("name", ["trained", "more tokens", "cased", "none"])
@given(st.lists(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join), max_size=6))
@example(["eclair", "LAMPS lamps", "a [SEP] b", "a [sep] b", "<S><s>"])
def test_any_text_gets_the_librarys_own_tokens(tokenizers: dict[str, Tokenizer], name: str, texts: list[str]):
    tokenizer = tokenizers[name]
    before = tokenizer.to_str()
    tokens = tokenize(tokenizer, texts, 64, pad=0)
    tokenizer.enable_truncation(64)
    expected = [tokenizer.encode(text).ids for text in texts]
    tokenizer.no_truncation()
    assert [ids.tolist() for ids in np.split(tokens.ids, tokens.offsets[1:-1])][: len(texts)] == expected
    assert tokenizer.to_str() == before


def test_no_texts_give_no_tokens():
    tokens = tokenize(train_tokenizer(iter(TEXTS), 100), [], 6, pad=0)
    assert len(tokens) == 0
    assert tokens.of(np.array([], dtype=np.int64))[1].tolist() == [0]


def test_a_saved_tokenizer_loads_without_its_padding(tmp_path: Path):
    tokenizer = train_tokenizer(iter(TEXTS), 100)
    tokenizer.enable_padding(length=32)  # pretrained folders have it, batches do their own
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenize(load_tokenizer(tmp_path), ["red lamp"], 9, 0).lengths[0] < 9


def test_a_folder_without_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=rf"{tmp_path} .*tokenizer\.json"):
        load_tokenizer(tmp_path)
