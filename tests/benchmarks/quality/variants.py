"""The variants that `make ablation` compares: one line each, its name and the settings over the base.

A variant that a data set's own configuration already has shows no difference there.
"""

BASE = "base"
VARIANTS: dict[str, tuple[str, ...]] = {
    BASE: (),
    "scale 10": ("heads.contrastive.scale=10",),
    "scale 40": ("heads.contrastive.scale=40",),
    "one head": ("heads.classification=null", "heads.contrastive.positives_only=false"),
    "dropout": ("model.dropout=0.1",),
    "6 epochs": ("train.epochs=6",),
    "batch 256": ("train.batch_rows=256",),
}
