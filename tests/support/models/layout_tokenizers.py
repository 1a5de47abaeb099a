"""Tokenizers of the kinds that published embedding models have, with small vocabularies made here."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from tests.support.workspace.jobs import COLOURS, THINGS

BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,:;-|'"
_WORDS = (*COLOURS, *THINGS, "want", "a", "please", "now", "model", "query", "passage", "task", "search", "result")
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def _template(first: str, last: str, ids: tuple[int, int], bert: bool = True) -> Any:
    pair = f"{first}:0 $A:0 {last}:0 $B:1 {last}:1" if bert else f"{first} $A {last} {last} $B {last}"
    names = dict(zip((first, last), ids, strict=True))
    return processors.TemplateProcessing(single=f"{first} $A {last}", pair=pair, special_tokens=list(names.items()))


def _word_pieces(specials: tuple[str, ...], lower: bool, unknown: str = "[UNK]") -> Tokenizer:
    letters = _LETTERS if lower else _LETTERS + _LETTERS[:26].upper()
    pieces = [*specials, *letters, *(f"##{letter}" for letter in letters), *_WORDS, "##s", "##er"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.add_special_tokens([*specials])
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return tokenizer


def bert(lower: bool = True, trained: bool = False) -> Callable[[], Tokenizer]:
    """`trained`: the file has the lengths of its training, as some have."""

    def make() -> Tokenizer:
        tokenizer = _word_pieces(BERT, lower)
        tokenizer.post_processor = _template("[CLS]", "[SEP]", (2, 3))
        if trained:
            tokenizer.enable_truncation(8)
            tokenizer.enable_padding(length=8)
        return tokenizer

    return make


def mpnet() -> Tokenizer:
    tokenizer = _word_pieces(("<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"), lower=True)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    return tokenizer


def _charsmap() -> bytes:
    """A compiled table of characters to replace, as sentencepiece writes it, that replaces none."""
    return struct.pack("<I", 1024) + b"\0" * 1024


def sentence_pieces() -> Tokenizer:
    letters = [(letter, -8.0) for letter in _LETTERS + _LETTERS[:26].upper()]
    words = [(f"▁{word}", -4.0 - 0.01 * number) for number, word in enumerate(_WORDS)]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -6.0), *words, *letters]
    tokenizer = Tokenizer(Unigram([*pieces, ("<mask>", 0.0)], unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(_charsmap())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = _template("<s>", "</s>", (0, 2), bert=False)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return tokenizer


def _merged(words: tuple[str, ...], begin: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Whole words as pieces, with the merges that make them from their letters."""
    pieces, merges = [], []
    for word in words:
        whole = f"{begin}{word}"
        for end in range(2, len(whole) + 1):
            left, right = whole[: end - 1], whole[end - 1]
            if (left, right) not in merges:
                merges.append((left, right))
                pieces.append(whole[:end])
    return pieces, merges


def _bytes(names: tuple[str, ...], first: tuple[str, ...] = ()) -> Tokenizer:
    """A byte-level tokenizer; `names` follow its vocabulary, `first` stand before it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = _merged(_WORDS, "Ġ")
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys([*first, *letters, *pieces]))}
    tokenizer = Tokenizer(BPE(vocabulary, merges, fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*first, *names])
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = _bytes(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    end = tokenizer.token_to_id("<|endoftext|>")
    template = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", end)]
    )
    byte_level = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.post_processor = processors.Sequence([byte_level, template])
    return tokenizer


def modern() -> Tokenizer:
    tokenizer = _bytes(("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"), first=("|||IP_ADDRESS|||", "<|padding|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    numbers = tokenizer.get_vocab()
    tokenizer.post_processor = _template("[CLS]", "[SEP]", (numbers["[CLS]"], numbers["[SEP]"]))
    return tokenizer


def gemma() -> Tokenizer:
    specials = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    pieces, merges = _merged(_WORDS, "▁")
    some = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *_LETTERS, *_LETTERS[:26].upper(), *pieces]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(some))}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens([*specials])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
