"""The variants that `make ablation` compares: one line each, its name and the settings over the base."""

BASE = "base"
VARIANTS: dict[str, tuple[str, ...]] = {
    BASE: (),
    "scale 10": ("heads.contrastive.scale=10",),
    "scale 40": ("heads.contrastive.scale=40",),
    "one head": ("heads.classification=null", "heads.contrastive.positives_only=false"),
    "dropout": ("model.dropout=0.1",),
    "two more epochs": ("train.epochs=4",),
    "batch 128": ("train.batch_rows=128",),
}
