"""Tensors beside an encoder in users' checkpoints: its head, under any name and at any depth; and losses,
metrics and counters, which do not affect the model's output.
"""

import re
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from vitkit.system.console.text import printable_name
from vitkit.system.errors import BadWeights
from vitkit.weights.files.content import FLOATS, Lazy, Tensors, lazy_zeros
from vitkit.weights.rules import Rule, gist

ENCODER = "encoder"
"""A value of `part`: the encoder without a head, in a file where no module has this name."""
# Usual names of a head
HEAD = re.compile(
    r"(?i)(\w+_)?(heads?|fc|classifier|cls|clf|linear|lin|dense|out|output|logits|last|final|top)"
    r"(_?\d+|_?layer)?"
)
# Second heads, and a layer before the head, for which formats have rules
SECOND = ("head_dist.", "cls_classifier.", "distillation_classifier.")
KNOWN = (*SECOND, "heads.pre_logits.")
# Layers of pre-training after an encoder, which no classifier reads
PROJECTION = re.compile(
    r"(dino|ibot|student|teacher|momentum|online|target)_(\w+_)?head\w*|projection_head\w*"
    r"|(\w+_)?(projector|predictor)\w*"
)
MASK = "mask_token"
# Names of projections that are used for heads of classes too
PREDICTOR = re.compile(r"(target_(\w+_)?head|(\w+_)?predictor)\w*")
# Parts of an encoder that the head of a user's class may read or ignore: Transformers' pooler and
# attention pooling, DeiT's second token
READ_OR_NOT = ("pooler.dense.weight", "head.probe", "dist_token", "embeddings.distillation_token")
# Projections that are recognised by the names of their layers, as those of DINO and iBOT
PROJECTION_LAYER = re.compile(r"head\.(mlp|last_layer)")
# Encoders of contrastive pre-training (MoCo, BYOL), whose projection has the name of a head
PRETRAINED = re.compile(r"(base|momentum|online|target)_(encoder|network)\.$")
# Names of the tensors of a layer; a layer has at least two of them
OF_LAYERS = ("weight", "bias", "running_mean", "running_var", "gamma", "beta", "scale", "shift")
# Losses and metrics belong to training, except layers below the name of a metric ("train_head", "f1")
LOSS = re.compile(r"(?i)criterion\w*|(\w+_)?loss(es|_\w+|\d+)?")
# Names of torchmetrics, and usual names of a metric in one phase of training
METRIC = re.compile(
    r"(?i)(\w+_)?metrics?(_\w+)?|(train|val|valid|validation|test)_\w+|(\w+_)?(acc|accuracy|auroc|f1)"
)
# Names of torchmetrics' counters, whatever the metric is called
COUNTS = ("tp", "fp", "tn", "fn", "confmat", "total", "correct")
# Mean and standard deviation of pixels, in a class that normalises its images itself
DEVIATION_OF = {"mean": "std", "pixel_mean": "pixel_std", "image_mean": "image_std"}
STATISTICS = (*DEVIATION_OF, *DEVIATION_OF.values())


def with_head(
    inside: Tensors, outside: Tensors, siblings: Tensors, head: str, prefix: str, width: int
) -> tuple[Tensors, Tensors, list[str]]:
    """An encoder's tensors, including its head under the format's name for it, `head`; the remaining
    tensors beside it; and notes.

    A single linear layer at the end is the head: within the encoder under its usual name
    (`heads.0.weight`), in the class around the encoder under a usual name of heads (`model.fc.weight`),
    or in a state dict of its own (`siblings`). Without any of these, the only linear layer that reads
    `width` features is the head, even if it has the name of a projection or of a metric. Any other
    tensors are unchanged, and are refused later. Raises VitkitError if the head may read something else
    than the encoder's output.
    """
    own = _head_inside(inside, head)
    if any(map(PROJECTION_LAYER.match, own)) or any(name.startswith(SECOND) for name in inside):
        return inside, outside, []
    if own and PRETRAINED.search(prefix) and not _linear(own):
        rest = {name: lazy for name, lazy in inside.items() if name not in own}
        full = gist(prefix + name for name in own)
        note = f"left out: {full}, the projection of pre-training in place of a head"
        return rest, outside, [note]

    # Its position: within the encoder, above it, or in a state dict of its own, but in one place only
    above = _head_above(inside, outside, head, prefix)
    tensors = own or above
    notes = []
    if not tensors:
        tensors = {name: lazy for name, lazy in siblings.items() if _is_in_head(name.split("."))}
        if tensors and not _linear(tensors):
            raise BadWeights(f"its head is {gist(tensors)}; {remedy(prefix)}")
    if not tensors:  # under a name of training
        named = {}
        if not prefix:  # the encoder's class itself contains it
            named = {name: lazy for name, lazy in inside.items() if _is_named_as_training(name)}
        tensors = _only_layer({**named, **outside, **siblings}, width)
        if tensors:
            name = printable_name(_linear(tensors))
            notes.append(
                f"GUESSED: its only linear layer, {name}, is the head, though it may be a projection of "
                f"pre-training by its name (without it: `part={_part(prefix)!r}`)"
            )
    layer = _linear(tensors)
    if not tensors and siblings:
        notes.append(f"left out: {gist(siblings)}, in state dicts of their own")
    if not layer or (own and above):
        return inside, outside, notes
    is_split = not own and not above
    if is_split:  # into several state dicts, each of which may come before the head
        outside = {**siblings, **outside}

    # Under the format's name
    rest = {name: lazy for name, lazy in inside.items() if name not in tensors}
    outside = {name: lazy for name, lazy in outside.items() if name not in tensors}
    weight = tensors[f"{layer}.weight"]
    bias = tensors.get(f"{layer}.bias")
    called = printable_name(layer)
    if layer != head:
        _check_reads_output(layer, inside, prefix)
        notes.append(
            f"head: the linear layer {called}; layers without weights, such as an activation before it, are "
            "not stored in a file"
        )
    if bias is None:
        bias = lazy_zeros(weight.shape[0])
        notes.append(
            f"head: {called} has no bias, so zeros are used; a head that normalises its input (cosine) computes "
            "something else"
        )
    return {**rest, f"{head}.weight": weight, f"{head}.bias": bias}, outside, notes


def without_head(
    inside: Tensors, outside: Tensors, head: str, prefix: str
) -> tuple[Tensors, list[str]]:
    """An encoder's tensors without heads of any kind, and a note on what was left out."""
    heads = [*_head_inside(inside, head), *(name for name in inside if name.startswith(KNOWN))]
    rest = {name: lazy for name, lazy in inside.items() if name not in heads}
    left = [*(prefix + name for name in heads), *outside]
    notes = []
    if left:
        notes.append(f"left out: {gist(left)}; only the encoder, as set")
    return rest, notes


def remedy(prefix: str) -> str:
    """The remedy if tensors beside an encoder with this prefix cannot be read."""
    return f"vitkit's head is one linear layer; to read the encoder without a head: `part={_part(prefix)!r}`"


def _part(prefix: str) -> str:
    """The value of `part` that selects an encoder with this prefix, without its head."""
    words = prefix.split(".")[:-1]
    word = ENCODER
    if words:
        word = words[-1]
    if words.count(word) > 1:  # `part` would select the first of them
        word = ".".join(words)
    return word


def names_of_head(names: Iterable[str], head: str) -> set[str]:
    """The names that belong to a head, or to a second one."""
    roots = (head.split(".")[0] + ".", *SECOND)
    return {name for name in names if name.startswith(roots)}


def _head_inside(inside: Tensors, head: str) -> Tensors:
    """The tensors within an encoder that have the name of its head."""
    root = head.split(".")[0] + "."
    return {
        name: lazy
        for name, lazy in inside.items()
        if name.startswith(root) and not name.startswith(KNOWN)
    }


def _head_above(inside: Tensors, outside: Tensors, head: str, prefix: str) -> Tensors:
    """The tensors of a head in the class around an encoder. Without a prefix, that is the encoder's class
    itself, with another name for the head."""
    above = {
        name: lazy
        for name, lazy in outside.items()
        if _is_in_head(_words_after_prefix(name, prefix))
    }
    if not prefix:
        for name, lazy in inside.items():
            first = name.split(".")[0]
            if first != head.split(".")[0] and _is_in_head([first, ""]):
                above[name] = lazy
    return above


def _check_reads_output(layer: str, inside: Tensors, prefix: str) -> None:
    """Raise VitkitError if it is unclear which of two outputs the head of a user's class reads."""
    for name in READ_OR_NOT:
        if name in inside:
            raise BadWeights(
                f"its head {printable_name(layer)} belongs to a class of your own, and the file does not "
                f"say whether it reads {printable_name(prefix + name)}; if it does not, save the file "
                "again without that"
            )


def _words_after_prefix(name: str, prefix: str) -> list[str]:
    """The words of a name after those that it shares with the encoder's prefix."""
    words = name.split(".")
    for word in prefix.split("."):
        if words[0] == word and len(words) > 1:
            words = words[1:]
        elif words[0].isdecimal() and word.isdecimal():  # in one Sequential with the encoder
            return ["head", *words[1:]]
        else:
            break
    return words


def _is_in_head(words: list[str]) -> bool:
    """Whether a tensor with this name is in a module with a usual name of heads. The last word is the
    tensor's own."""
    layers = words[:-1]
    if any(PROJECTION.fullmatch(word) or _is_of_training(word) for word in layers):
        return False
    return any(HEAD.fullmatch(word) for word in layers)


def _linear(tensors: Tensors) -> str:
    """The linear layer that consists of exactly these tensors, a weight and perhaps a bias; otherwise "". A
    convolution of 1 x 1 does not count, because it may have an output for every patch."""
    layers = {name.rpartition(".")[0] for name in tensors}
    if len(layers) != 1:
        return ""
    (layer,) = layers
    leaves = {name.rpartition(".")[2]: lazy for name, lazy in tensors.items()}
    weight = leaves.pop("weight", None)
    bias = leaves.pop("bias", None)
    if weight is None or leaves or weight.dtype not in FLOATS:
        return ""
    if len(weight.shape) != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return ""
    return layer


def _only_layer(tensors: Tensors, width: int) -> Tensors:
    """The tensors of the only layer beside an encoder, if it is linear, reads `width` features, and has
    the name of a projection or a metric; otherwise {}."""
    layers: dict[str, Tensors] = {}
    for name, lazy in tensors.items():
        layer = name.rpartition(".")[0]
        is_projection = any(PROJECTION.fullmatch(word) for word in layer.split("."))
        if is_projection or not _is_left_out(name, lazy, tensors):
            layers.setdefault(layer, {})[name] = lazy
    if len(layers) != 1:
        return {}
    ((layer, only),) = layers.items()
    is_named_so = all(map(_is_named_as_training, only))
    if not is_named_so or not _linear(only) or only[f"{layer}.weight"].shape[1] != width:
        return {}
    return only


class OfPixels(NamedTuple):
    """Mean and standard deviation of pixels, in a class that normalises its images itself."""

    names: tuple[str, str]
    """The names of the two tensors."""
    mean: tuple[float, ...]
    """Mean of each channel, for levels from 0 to 1."""
    std: tuple[float, ...]


def statistics_in(tensors: Tensors, channels: int) -> OfPixels | None:
    """The statistics of pixels that a class has as buffers beside its encoder; None if there are none, or
    if the values are implausible."""
    for name, lazy in tensors.items():
        layer, dot, leaf = name.rpartition(".")
        other = f"{layer}{dot}{DEVIATION_OF.get(leaf)}"
        if leaf not in DEVIATION_OF or other not in tensors or _is_left_out(name, lazy, tensors):
            continue
        pair = (lazy, tensors[other])
        if any(not _is_of_channels(each, channels) or each.dtype not in FLOATS for each in pair):
            continue
        means, deviations = (each.read().double().flatten().tolist() for each in pair)
        scale = 1.0
        if max(means) > 1:  # for levels from 0 to 255
            scale = 255.0
        mean = tuple(value / scale for value in means)
        std = tuple(value / scale for value in deviations)
        if all(0 <= value <= 1 for value in mean) and all(0.01 <= value <= 1 for value in std):
            return OfPixels((name, other), mean, std)
    return None


def _is_of_channels(lazy: Lazy, channels: int) -> bool:
    """Whether a tensor has a number for each channel of an image: (C,), (C, 1, 1) or (1, C, 1, 1)."""
    shape = lazy.shape
    return shape in ((channels,), (channels, 1, 1), (1, channels, 1, 1))


def without_unread(
    tensors: Tensors, rules: list[Rule], width: int, prefix: str, alone: bool
) -> tuple[Tensors, list[str], list[str]]:
    """The tensors without those beside the encoder that do not affect its output; notes that name these;
    and the names of other tensors that no rule reads.

    Left out are counters, losses, metrics, projections of pre-training, scalars and vectors. Kept are
    tensors of layers: a layer with weight and bias; a vector as long as the encoder is wide, which may be
    a norm between encoder and head, or an order of features; layers of any name between encoder and head;
    and layers that read the logits.

    alone: leave out everything beside the encoder.
    """
    known = {name for rule in rules for name in rule.theirs}
    roots = {name.split(".")[0] for name in known}
    beside = {}
    for name, lazy in tensors.items():
        if name not in known and name.split(".")[0] not in roots:
            beside[name] = lazy
    vectors: dict[str, set[str]] = {}
    for name, lazy in beside.items():
        layer, _, leaf = name.rpartition(".")
        if layer and lazy.shape and leaf in OF_LAYERS:
            vectors.setdefault(layer, set()).add(leaf)

    # Tensors with names of training; before a head they may be layers nevertheless
    named = [name for name, lazy in beside.items() if _is_left_out(name, lazy, beside)]
    outputs, read = _sizes_of_head(tensors, rules)
    if read and not alone:
        layers = {}
        for name in named:
            if not _is_count(name, beside[name]) and name.rpartition(".")[2] != MASK:
                layers[name] = beside[name]
        if _may_feed_head(layers, width, read) or _may_read_logits(layers, vectors, outputs):
            named = [name for name in named if name not in layers]

    left = []
    guessed = []
    for name, lazy in beside.items():
        layer, _, leaf = name.rpartition(".")
        is_one_of_a_layer = len(vectors.get(layer, ())) > 1
        is_of_the_encoders_class = not layer and not prefix
        if alone or name in named:
            left.append(name)
        elif (
            is_one_of_a_layer
            or is_of_the_encoders_class
            or len(lazy.shape) > 1
            or leaf in STATISTICS
        ):
            continue
        elif lazy.shape not in ((width,), (read,)):
            guessed.append(name)
    notes = []
    if not read and not alone and any(_may_be_head(name, beside[name], width) for name in left):
        notes.append(
            f"GUESSED: {gist(left)} belongs to pre-training by its name, so it is left out beside the model; if it "
            "is the head, vitkit cannot read it, because its head is one linear layer"
        )
    elif left:
        notes.append(f"left out: {gist(left)}, beside the model")
    if guessed:
        notes.append(
            f"GUESSED: {gist(guessed)}, beside the model, does not affect its outputs and is left out; a "
            "temperature, for example, would change the probabilities"
        )
    unread = {*left, *guessed}
    rest = {name: lazy for name, lazy in tensors.items() if name not in unread}
    return rest, notes, [name for name in beside if name in rest]


def _may_be_head(name: str, lazy: Lazy, width: int) -> bool:
    """Whether a tensor may be the first layer of a head of several layers, under a name of a predictor."""
    reads = len(lazy.shape) == 2 and lazy.shape[1] == width
    return reads and any(PREDICTOR.fullmatch(word) for word in name.split(".")[:-1])


def _sizes_of_head(tensors: Tensors, rules: list[Rule]) -> tuple[int, int]:
    """The numbers of outputs and of input features of the head; 0 without a head."""
    heads = [rule.theirs[0] for rule in rules if rule.ours.startswith("head.")]
    for name in heads:
        if name in tensors and len(tensors[name].shape) == 2:
            outputs, features = tensors[name].shape
            return outputs, features
    return 0, 0


def _may_feed_head(tensors: Tensors, width: int, read: int) -> bool:
    """Whether tensors may be layers between an encoder and its head: one reads as many features as the
    encoder has, and one has as many outputs as the head reads."""
    reads = []
    gives = []
    for name, lazy in tensors.items():
        shape = lazy.shape
        is_of_a_matrix = len(_weight_beside(name, tensors)) > 1  # a bias
        if len(shape) == 1 and not is_of_a_matrix:  # a norm, or scale factors
            reads.append(shape[0] in (width, read))
            gives.append(shape[0] == read)
        elif len(shape) > 1:
            reads.append(shape[1] in (width, read) or prod(shape[1:]) in (width, read))
            # Several gates for each feature
            gives.append(shape[0] == read or ".weight_hh_" in name)
    return any(reads) and any(gives)


def _may_read_logits(tensors: Tensors, vectors: dict[str, set[str]], outputs: int) -> bool:
    """Whether tensors may be layers after a head: a matrix with as many inputs as the head has outputs, or
    a norm of that size. A single vector is a loss's weights of classes. vectors: tensor names by layer."""
    for name, lazy in tensors.items():
        layer, _, leaf = name.rpartition(".")
        is_matrix = leaf == "weight" and len(lazy.shape) > 1
        if is_matrix and lazy.shape[1] == outputs:
            return True
        is_of_a_matrix = len(_weight_beside(name, tensors)) > 1
        is_norm = len(vectors.get(layer, ())) > 1 and not is_of_a_matrix
        if is_norm and lazy.shape == (outputs,):
            return True
    return False


def _weight_beside(name: str, tensors: Tensors) -> tuple[int, ...]:
    """The shape of the weight in the layer of a tensor; () if there is none."""
    layer = name.rpartition(".")[0]
    weight = tensors.get(f"{layer}.weight")
    if weight is None:
        return ()
    return weight.shape


def _is_count(name: str, lazy: Lazy) -> bool:
    """Whether a tensor is a counter or belongs to a metric: integers, which weights never are. Other
    integers may be an order of features or classes."""
    words = name.split(".")
    if lazy.dtype in FLOATS:
        return False
    is_of_training = any(_is_of_training(word) for word in words[:-1])
    return prod(lazy.shape) == 1 or is_of_training or words[-1] in COUNTS


def _is_left_out(name: str, lazy: Lazy, tensors: Tensors) -> bool:
    """Whether a tensor belongs to a loss, a metric or pre-training by its name, or is a counter. A layer, with
    a weight of two axes, never belongs to a metric."""
    words = name.split(".")[:-1] or [name]
    if _is_count(name, lazy) or name == MASK or name.endswith(f".{MASK}"):
        return True
    if any(PROJECTION.fullmatch(word) or LOSS.fullmatch(word) for word in words):
        return True
    is_of_a_metric = any(METRIC.fullmatch(word) for word in words)
    return is_of_a_metric and len(_weight_beside(name, tensors)) < 2


def _is_named_as_training(name: str) -> bool:
    """Whether a tensor is in a layer with the name of a projection or a metric."""
    words = name.split(".")[:-1]
    return any(PROJECTION.fullmatch(word) or METRIC.fullmatch(word) for word in words)


def _is_of_training(word: str) -> bool:
    """Whether a word of a name is that of a loss or a metric."""
    return bool(LOSS.fullmatch(word) or METRIC.fullmatch(word))
