"""The variants that `make ablation` compares: one line each, its name and the settings over the base.

A variant that a data set's own configuration already has is left out there.
"""

BASE = "base"
VARIANTS: dict[str, tuple[str, ...]] = {
    BASE: (),
    "scale 5": ("heads.contrastive.scale=5",),
    "scale 10": ("heads.contrastive.scale=10",),
    "scale 20": ("heads.contrastive.scale=20",),
    "scale 40": ("heads.contrastive.scale=40",),
    "one head": ("heads.classification=null", "heads.contrastive.positives_only=false"),
    "dropout": ("model.dropout=0.1",),
    "4 epochs": ("train.epochs=4",),
    "batch 256": ("train.batch_rows=256",),
    "batch 512 in 4 chunks": ("train.batch_rows=512", "train.gradcache_chunks=4"),
    "symmetric": ("heads.contrastive.symmetric=true",),
    "logq": ("heads.contrastive.logq=true",),
    "learnt temperature": ("heads.contrastive.temperature=learnt",),
    "hard negatives": ("heads.contrastive.negatives={per_query: 1}",),
    "replay": ("train.replay=0.2",),
    "averaged": ("train.averaging={ema_half_life_steps: 20}",),
    "merged with the parent": ("train.averaging={merge_with_parent: 0.3}",),
    "best step": ("train.keep_best={metric: mrr@10, rows: 200, patience: null}",),
    "decay before release": ("train.decay_before_release={share: 0.2, floor: 0.1}",),
    "head weight 0.1": ("heads.classification.weight=0.1",),
    "head weight 2": ("heads.classification.weight=2",),
    "head weight 4": ("heads.classification.weight=4",),
    "no replay": ("train.replay=0",),
    "not averaged": ("train.averaging=null",),
    "balanced": ("heads.classification.loss=balanced",),
    "balanced and merged by half": ("heads.classification.loss=balanced", "train.averaging={merge_with_parent: 0.5}"),
    "head not refitted": ("heads.classification.refit_rows=null",),
}
