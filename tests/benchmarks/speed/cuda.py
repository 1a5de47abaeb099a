"""Training and encoding on one NVIDIA GPU, compared with sentence-transformers at its fastest on the same GPU.

    make bench NAME=cuda
    python -m tests.benchmarks.speed.cuda --device cpu --layers 2 --width 64 --batch 16 --steps 4 --texts 64  # a trial

BERT-base with random weights, texts of 128 tokens and of mixed lengths, bf16, AdamW; both take turns, some steps each.
Prints tables as Markdown. Without a GPU it ends with exit code 2.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoTokenizer, BertConfig, BertModel

from configs.instances import instances
from configs.load import load_config
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID
from tasks.preflight.encoder import pretrained_folder
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tests.benchmarks.ours import Millrace
from tests.benchmarks.speed.useful_share import TRAINING, BareProduct, encoder_flops
from tests.benchmarks.theirs import FOLDER, MAX_TOKENS, SETTINGS, SentenceTransformers, Side

SETTINGS |= {"no dropout, flash attention": (0.0, "flash_attention_2")}
GPU_PRODUCT = 8192  # rows of the bare product on a GPU
LOG_TOKENS, DEVIATION = 3.16, 0.6  # of the logarithm of mixed lengths, as of reviews' items
ROUNDS = 5


class Size(NamedTuple):
    """The encoder, and the amount of work. `steps`: of a turn; `texts`: that are encoded."""

    layers: int
    width: int
    batch: int
    steps: int
    texts: int


def main() -> int:
    """Measure and print; return 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name, default in (("layers", 12), ("width", 768), ("batch", 256), ("steps", 10), ("texts", 16384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args())
    device, size = given.pop("device"), Size(**given)
    if device == "cuda" and not torch.cuda.device_count():
        print(
            "make bench NAME=cuda needs an NVIDIA GPU and a torch built for it; this machine has none that torch "
            f"{torch.__version__} sees. To try the program on a processor: python -m tests.benchmarks.speed.cuda "
            "--device cpu --layers 2 --width 64 --batch 16 --steps 4 --texts 64",
            file=sys.stderr,
        )
        return 2
    where = torch.cuda.get_device_name() if device == "cuda" else "a processor: these figures show only that it runs"
    print(f"\n{size.layers} layers, {size.width} wide, {size.batch} pairs a batch, bf16, on {where}")
    with tempfile.TemporaryDirectory(prefix="millrace-cuda-") as name:
        folder = write_model(Path(name), size)
        for mixed in (False, True):
            measure(folder, device, size, mixed)
    return 0


def measure(folder: Path, device: str, size: Size, mixed: bool) -> None:
    """Print the tables of texts of one kind."""
    steps = size.steps * (ROUNDS + 1)
    queries, items = (texts(size.batch * steps, mixed, seed) for seed in (1, 2))
    numbers = [str(number) for number in range(len(items))]
    rows = pa.table({ROW_ID: numbers, QUERY: queries, ITEM: items, ITEM_ID: numbers})
    overrides = (
        f"model.pretrained={folder}", "heads.classification=null", "train.epochs=1", "train.precision=bf16",
        f"train.batch_rows={size.batch}", f"train.max_tokens.query={MAX_TOKENS}",
        f"train.sequence_tokens={MAX_TOKENS}", f"infer.max_tokens={MAX_TOKENS}", f"infer.sequence_tokens={MAX_TOKENS}",
        "infer.batch_sequences=512", f"accelerator={device}",
    )  # fmt: skip
    config = load_config(None, overrides)
    product = BareProduct("bf16", device, GPU_PRODUCT if device == "cuda" else 512)
    with open_accelerator(device, Rank(0, 1, 0), config, "bf16") as accelerator:
        ours = Millrace(config, accelerator, rows)
        theirs = {
            name: SentenceTransformers(key, queries, items, 1, Side(folder, device, size.batch, compiled))
            for name, key, compiled in peers(device)
        }
        steps_of = {"Millrace": ours.step, **{name: peer.step for name, peer in theirs.items()}}
        rates, bare = in_turns(steps_of, size.steps, accelerator.synchronize, product)
        of_a_pair = TRAINING * encoder_flops(ours.parts.encoder_config, ours.lengths) / ours.pairs
        what = "of 3 to 128 tokens" if mixed else "of 128 tokens"
        show(f"training, texts {what}, pairs/s", {n: r * size.batch for n, r in rates.items()}, of_a_pair, bare)
        some = (queries + items)[: size.texts]
        model = SentenceTransformer(str(folder), device=device).bfloat16()
        model.max_seq_length = MAX_TOKENS
        encode = {
            "Millrace": lambda: ours.encode(some, "bf16"),
            "sentence-transformers": lambda: model.encode(some, batch_size=256, show_progress_bar=False),
        }
        rates, bare = in_turns(encode, 1, accelerator.synchronize, product)
        of_a_text = encoder_flops(ours.parts.encoder_config, ours.lengths_of(some)) / len(some)
        show(f"encoding, texts {what}, texts/s", {n: r * len(some) for n, r in rates.items()}, of_a_text, bare)


def peers(device: str) -> list[tuple[str, str, bool]]:
    """Return sentence-transformers' ways of training: the name, its key in SETTINGS, and True if torch compiles it."""
    found = [(name, name, False) for name in ("as shipped", "no dropout")]
    if device == "cuda":
        found.append(("no dropout, compiled", "no dropout", True))
        if importlib.util.find_spec("flash_attn"):
            name = "no dropout, flash attention"
            found.append((name, name, False))
    return [(f"sentence-transformers, {name}", key, compiled) for name, key, compiled in found]


def in_turns(
    works: Mapping[str, Callable[[], object]], times: int, wait: Callable[[], None], product: BareProduct
) -> tuple[dict[str, float], float]:
    """Return how often a second each work is done, and the bare rate; medians of turns after a first one."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    bare = []
    for _ in range(ROUNDS + 1):
        for name, work in works.items():
            wait()
            began = time.perf_counter()
            for _ in range(times):
                work()
            wait()
            taken[name].append((time.perf_counter() - began) / times)
        bare.append(product.flops / product.seconds())
    return {name: 1 / statistics.median(each[1:]) for name, each in taken.items()}, statistics.median(bare[1:])


def show(title: str, rates: dict[str, float], flops: float, bare: float) -> None:
    """Print the table. The ratio is to the fastest of the others; shares are of the products on real tokens."""
    fastest, peak = max(rate for name, rate in rates.items() if name != "Millrace"), published_peak()
    print(f"\n| {title} | | ratio | share of the bare rate | share of the published bf16 peak |")
    print("|---|---:|---:|---:|---:|")
    for name, rate in rates.items():
        of_peak = f"{rate * flops / peak:.0%}" if peak else "not published"
        print(f"| {name} | {rate:,.1f} | {rate / fastest:.2f} | {rate * flops / bare:.0%} | {of_peak} |", flush=True)
    print(f"\nThe bare rate is {bare / 1e12:.2f} TFLOP/s in bf16.")


def published_peak() -> float | None:
    """Return the GPU's operations a second in bf16 by configs/instances.yaml; None if it is not there."""
    name = torch.cuda.get_device_name().lower() if torch.cuda.device_count() else ""
    of_chip = {each.chip: each.peak("bf16") / each.devices for each in instances().values()}
    return next((peak for chip, peak in of_chip.items() if chip in name), None)


def write_model(folder: Path, size: Size) -> Path:
    """Write a BERT with random weights and MiniLM's tokenizer, as sentence-transformers saves it; return its folder."""
    torch.manual_seed(1)
    shape = BertConfig(
        hidden_size=size.width, num_hidden_layers=size.layers, num_attention_heads=size.width // 64 or 1,
        intermediate_size=4 * size.width,
    )  # fmt: skip
    BertModel(shape).save_pretrained(folder / "bert")
    AutoTokenizer.from_pretrained(str(pretrained_folder(FOLDER))).save_pretrained(folder / "bert")
    whole = SentenceTransformer(
        modules=[Transformer(str(folder / "bert")), Pooling(size.width), Normalize()], device="cpu"
    )
    whole.save(str(folder / "model"))
    return folder / "model"


def texts(count: int, mixed: bool, seed: int) -> list[str]:
    """Return texts of words of one token each: of 128 tokens with the two at the ends, or of mixed lengths."""
    tokenizer = AutoTokenizer.from_pretrained(str(pretrained_folder(FOLDER)))
    words = np.array(sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha()))
    random = np.random.default_rng(seed)
    lengths = np.full(count, MAX_TOKENS)
    if mixed:
        lengths = np.exp(random.normal(LOG_TOKENS, DEVIATION, count)).astype(np.int64).clip(3, MAX_TOKENS)
    return [" ".join(random.choice(words, length - 2)) for length in lengths.tolist()]


if __name__ == "__main__":
    sys.exit(main())
