"""What a step minimises: the paper's classification and masked patch prediction, MAE and DINO."""

from vitkit.system.lazy import lazily

_FILE_OF = {
    "Learner": "objective",
    "MaskedAutoencoder": "autoencoder",
    "MaskedPatches": "masked",
    "Objective": "objective",
    "SelfDistillation": "distillation",
    "Supervised": "supervised",
    "balanced_weights": "supervised",
    "blocks_of": "objective",
}
__all__ = [*_FILE_OF]
__getattr__ = lazily(__name__, _FILE_OF)
