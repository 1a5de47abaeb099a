import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from configs.schema.config import Config
from tasks.worker.export.export import export_model, exported_outputs, label_scoring_code, score, scoring_code
from tasks.worker.model.label_heads import LABEL_TASKS
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.start import build_parts
from tasks.worker.training.tokenised import own_settings
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, LABEL_HEADS, all_rows, make_workspace, tiny_config

KINDS = {
    "plain": (CLASSIFIER,),
    "labels": LABEL_HEADS,
    "narrower": (CLASSIFIER, "model.embedding_width=8"),
    "crossed": (CLASSIFIER, *FEATURES),
}
Exported = tuple[Path, ModelParts, Config]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Exported folders by kind, each made once."""
    store, rows = make_workspace(tmp_path_factory.mktemp("export"), rows=40)
    made: dict[str, Exported] = {}

    def get(kind: str) -> Exported:
        if kind not in made:
            config = tiny_config(*KINDS[kind])
            parts = build_parts(config, [all_rows(store, [rows], config)])
            if parts.model.interaction is not None:
                torch.nn.init.normal_(parts.model.interaction.out.weight, std=0.1)
            folder = tmp_path_factory.mktemp(kind)
            export_model(parts, config, "main-00000001-abc", folder)
            made[kind] = folder, parts, config
        return made[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_no_exported_file_is_a_pickle(exported: Callable[[str], Exported], kind: str):
    suffixes = {path.suffix for path in exported(kind)[0].rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors"} | ({".py"} if kind == "crossed" else set())


def test_the_classification_head_is_a_folder_apart(exported: Callable[[str], Exported]):
    folder, parts, _ = exported("plain")
    names = {path.parent.name for path in folder.rglob("*.safetensors") for name in load_file(path) if name == "bias"}
    assert names == {"classification"}
    settings = json.loads((folder / "classification" / "config.json").read_text())
    assert settings == {"input": "pair", "threshold": 0.5, "classes": ["label <= 2", "label >= 4"]}
    lines = scoring_code(parts.model, str(folder))
    random = np.random.default_rng(3)
    sides = {name: random.normal(size=(5, parts.model.width)).astype(np.float32) for name in ("queries", "items")}
    exec(lines, scored := dict(sides))
    with torch.no_grad():
        logits = parts.model.classify(torch.from_numpy(sides["queries"]), torch.from_numpy(sides["items"]))
    assert scored["probability"] == pytest.approx(logits.softmax(1)[:, 1].numpy(), abs=1e-6)
    assert scored["named"].tolist() == (logits.argmax(1) == 1).tolist()
    assert score(folder, **sides) == pytest.approx(scored["probability"], abs=1e-6)


def test_each_head_of_labels_is_a_folder_with_code_that_says_what_the_model_says(exported: Callable[[str], Exported]):
    folder, parts, config = exported("labels")
    random = np.random.default_rng(3)
    sides = {name: random.normal(size=(5, parts.model.width)).astype(np.float32) for name in ("queries", "items")}
    for name, head in config.heads.of_labels.items():
        exec(label_scoring_code(parts.model, name, str(folder)), found := dict(sides))
        with torch.no_grad():
            outputs = parts.model.label_outputs(name, *(torch.from_numpy(each) for each in sides.values())).numpy()
        assert exported_outputs(folder, name, **sides) == pytest.approx(outputs, abs=1e-6)
        assert found["says"] == pytest.approx(LABEL_TASKS[name].predict(outputs, head), abs=1e-5)
    assert json.loads((folder / "multiclass" / "config.json").read_text())["classes"] == ["1", "2", "3", "4", "5"]


def test_texts_are_cut_where_serving_cuts_them(exported: Callable[[str], Exported]):
    folder, _, config = exported("plain")
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 16
    assert config.infer.max_tokens == 16


WITHOUT_THE_PIPELINE = """
import json, sys
for name in ("tasks", "configs", "infra", "flows"):
    sys.modules[name] = None  # an import of it raises
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=True)
entries = [{"text": "red lamp", "price": 12.0, "locale": "de", "gift": True}, "blue chair"]
print(json.dumps(model.encode(entries, show_progress_bar=False).tolist()))
"""


def test_a_model_with_interaction_runs_without_the_pipeline(exported: Callable[[str], Exported], tmp_path: Path):
    folder, parts, _ = exported("crossed")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PIPELINE, str(folder)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    vectors = np.array(json.loads(done.stdout.splitlines()[-1]))
    assert vectors.shape == (2, parts.model.width)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)


@pytest.mark.parametrize(
    "names", [("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<pad>", "<unk>", "<s>", "</s>", "<mask>")]
)
def test_special_tokens_of_either_family_are_known(
    exported: Callable[[str], Exported], tmp_path: Path, names: tuple[str, ...]
):
    _, parts, config = exported("plain")
    vocabulary = {name: number for number, name in enumerate([*names, "lamp"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=names[1]))
    settings = own_settings(tokenizer)
    renamed = dataclasses.replace(parts, tokenizer=tokenizer, tokenizer_settings=settings)
    export_model(renamed, config, "v", tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    assert tuple(saved[role] for role in roles) == names
