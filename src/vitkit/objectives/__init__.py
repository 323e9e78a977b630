"""What a step minimises: the paper's classification and masked patch prediction, MAE and DINO."""

from vitkit.system.lazy import lazily

_FILES = {
    "autoencoder": "MaskedAutoencoder",
    "distillation": "SelfDistillation",
    "masked": "MaskedPatches",
    "objective": "Learner Objective Unlabelled blocks_of",
    "supervised": "Supervised",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
