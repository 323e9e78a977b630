"""From names to configurations to models: `create("B/16")`.

This room needs only torch. It has no loss, optimiser, file format or process group.
"""

from vitkit.system.lazy import lazily

_FILES = {
    "ancestors.backbone": "Backbone DIALECTS ResNetConfig UNITS",
    "ancestors.lenet": "LeNet LeNetConfig",
    "ancestors.mixers": "AxialBlock AxialMixer",
    "ancestors.resnet": "Conv ResNet standardised",
    "attention": "Attention ScaledDotProduct attention_weights",
    "breakdown": "Part parts",
    "config": "ViTConfig WITHOUT_PARAMETERS",
    "construction": (
        "KERNEL_LAYERS KINDS Model blueprint build config_from config_to_dict create for_inference "
        "parameters resized same_memory with_stride"
    ),
    "layers": "Dense",
    "operations": "Cost cost exaflops",
    "pooling": "DistilledHead",
    "positions": (
        "LearnedPositions NoPositions RESAMPLE RelativePositions RotaryPositions insert_zeros resample "
        "sincos"
    ),
    "shortcuts": (
        "EarlyExit Exit Merging check_can_exit check_can_merge check_sure states_at tokens_left"
    ),
    "states": "Recording formed hidden_states not_compiled recording",
    "tiling": "Grid Tiling as_pair as_side",
    "vision_transformer": "Patches VisionTransformer",
    "zoo": "ModelConfig NAMES SIZES backbone_name called named vit",
}
__all__, __getattr__, __dir__ = lazily(__name__, _FILES)
