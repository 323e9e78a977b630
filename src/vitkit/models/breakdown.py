"""A model as its parts, in the order of the data: their outputs, parameters and costs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vitkit.models.ancestors.backbone import ResNetConfig
from vitkit.models.ancestors.lenet import LeNetConfig
from vitkit.models.config import ViTConfig
from vitkit.models.construction import blueprint, parameters
from vitkit.models.operations import cost, stage_macs, vit_macs
from vitkit.models.zoo import ModelConfig


@dataclass(frozen=True)
class ModelPart:
    """A part of a model. The parameters and MACs of all parts add up to the model's."""

    name: str
    """A short name of the part."""
    output: tuple[int, ...]
    """The shape of the output of the part for one image: (h, w, C) of a feature map, (T, D) of tokens, (D,) of a
    vector."""
    parameters: int
    """Number of learned values, summed over all `times` occurrences of the part."""
    macs: int
    """Multiply-accumulates for one image, summed over all occurrences of the part; see `cost`."""
    times: int = 1
    """Number of occurrences of the part."""


def parts(config: ModelConfig) -> list[ModelPart]:
    """The parts of a model for images of its own size, in the order of the data. Allocates no memory."""
    if isinstance(config, LeNetConfig):
        return [ModelPart("LeNet-5", (config.classes,), parameters(config), cost(config).macs)]
    if isinstance(config, ResNetConfig):
        return _resnet_parts(config)
    return _vit_parts(config)


def _vit_parts(config: ViTConfig) -> list[ModelPart]:
    """The parts from the patches to the classes (Figure 1)."""
    learned = _learned_by(config, _part_of)
    macs = vit_macs(config, config.image)
    rows, columns = config.grid
    patches = (rows * columns, config.width)
    tokens = (rows * columns + config.prefix, config.width)
    layers = config.depth
    if config.mixer == "axial":  # a block for the rows and one for the columns
        layers = 2 * config.depth

    # Eq. 1
    listed = []
    if config.stem is not None:
        grid = config.stem.last_grid(config.image)
        shape = (*grid, config.stem.features)
        listed.append(ModelPart("ResNet", shape, learned["backbone"], macs["backbone"]))
    listed.append(
        ModelPart("linear projection", patches, learned["projection"], macs["projection"])
    )
    if config.has_class_token:
        listed.append(ModelPart("class token", tokens, learned["cls"], 0))
    if config.registers:
        name = "registers"
        if config.pool == "distilled" and config.registers == 1:
            name = "distillation token"
        listed.append(ModelPart(name, tokens, learned["registers"], 0, config.registers))
    if config.positions != "none":
        listed.append(ModelPart("position embedding", tokens, learned["positions"], 0))
    if config.embedding_norm:
        listed.append(ModelPart("norm before the blocks", tokens, learned["embedding_norm"], 0))

    # Eq. 2 and 3
    norms = "block norms"
    if config.layer_scale is not None:
        norms = "norms, scales"
    listed.append(ModelPart(norms, tokens, learned["norms"], 0, 2 * layers))
    listed.append(ModelPart("attention", tokens, learned["attention"], macs["attention"], layers))
    listed.append(ModelPart("MLP", tokens, learned["mlp"], macs["mlp"], layers))

    # Eq. 4, and the head
    answers: tuple[int, ...] = ()
    if not config.pools:
        answers = (tokens[0],)
    norm = ModelPart("last norm", tokens, learned["norm"], 0)
    pooled: tuple[int, ...] = (*answers, config.pooled_width)
    pool = ModelPart("pooling", pooled, learned["pool"], macs["pool"])
    if config.norm == "tokens":
        listed += [norm, pool]
    else:
        listed += [pool, ModelPart("last norm", pooled, learned["norm"], 0)]
    if config.representation:
        hidden = (*answers, config.representation)
        listed.append(
            ModelPart("hidden layer", hidden, learned["representation"], macs["representation"])
        )
    if config.classes:
        listed.append(ModelPart("head", (*answers, config.classes), learned["head"], macs["head"]))
    return listed


def _part_of(name: str) -> str:
    """The part of a Vision Transformer that a parameter belongs to, by its name."""
    part, *rest = name.split(".")
    if part == "stem" and rest[0] == "project":
        return "projection"
    if part == "stem":
        return "backbone"
    if part != "blocks":
        return part
    words = [word for word in rest[1:] if word not in ("row", "column")]
    if words[0] in ("attention", "mlp"):
        return words[0]
    return "norms"  # and the factors of LayerScale


def _resnet_parts(config: ResNetConfig) -> list[ModelPart]:
    """The parts from the root's convolution to the head."""
    backbone = config.backbone
    macs = stage_macs(backbone, config.channels, config.image)
    stage_of_unit = [
        f"stage {stage}" for stage, units in enumerate(backbone.units, 1) for _ in range(units)
    ]

    def part_of(name: str) -> str:
        part, number, *_ = name.split(".")
        if part == "blocks":
            return stage_of_unit[int(number)]
        return part

    learned = _learned_by(config, part_of)
    root = (*backbone.root_grid(config.image), backbone.channels)
    listed = [ModelPart("root", root, learned["root"], macs[0])]
    for stage, (_, grid) in enumerate(backbone.stage_grids(config.image)):
        shape = (*grid, 4 * backbone.channels * 2**stage)
        name = f"stage {stage + 1}"
        units = backbone.units[stage]
        listed.append(ModelPart(name, shape, learned[name], macs[stage + 1], units))
    if learned["norm"]:
        listed.append(ModelPart("last norm", listed[-1].output, learned["norm"], 0))
    answers: tuple[int, ...] = ()
    if not config.pools:
        answers = config.grid
    listed.append(ModelPart("pooling", (*answers, backbone.features), 0, 0))
    if config.classes:
        rest = cost(config).macs - sum(macs)
        listed.append(ModelPart("head", (*answers, config.classes), learned["head"], rest))
    return listed


def _learned_by(config: ModelConfig, part_of: Callable[[str], str]) -> Counter[str]:
    """The number of learned values of each part; `part_of` maps the name of a parameter to its part."""
    learned: Counter[str] = Counter()
    for name, parameter in blueprint(config).named_parameters():
        learned[part_of(name)] += parameter.numel()
    return learned
