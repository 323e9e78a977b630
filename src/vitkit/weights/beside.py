"""What lies beside an encoder in checkpoints of people's own training: its head, under whatever name and
at whatever depth; and losses, metrics and counters, which no answer depends on.
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
"""As --part: the encoder without a head, in a file that calls nothing so."""
# What people call a head
HEAD = re.compile(
    r"(?i)(\w+_)?(heads?|fc|classifier|cls|clf|linear|lin|dense|out|output|logits|last|final|top)"
    r"(_?\d+|_?layer)?"
)
# Second heads, and a layer before the head, which formats have rules for
SECOND = ("head_dist.", "cls_classifier.", "distillation_classifier.")
KNOWN = (*SECOND, "heads.pre_logits.")
# What pre-training puts behind an encoder, and no classifier reads
PROJECTION = re.compile(
    r"(dino|ibot|student|teacher|momentum|online|target)_(\w+_)?head\w*|projection_head\w*"
    r"|(\w+_)?(projector|predictor)\w*"
)
MASK = "mask_token"
# Of these names, one that people give a head of classes too
PREDICTOR = re.compile(r"(target_(\w+_)?head|(\w+_)?predictor)\w*")
# Parts of an encoder that a head of somebody's own class may read, or pass by: Transformers' pooler and
# attention pooling, DeiT's second token
READ_OR_NOT = ("pooler.dense.weight", "head.probe", "dist_token", "embeddings.distillation_token")
# Heads that are projections by their own layers' names, as DINO's and iBOT's
PROJECTION_LAYER = re.compile(r"head\.(mlp|last_layer)")
# Encoders of contrastive pre-training (MoCo, BYOL), whose projection has the name of the head
PRETRAINED = re.compile(r"(base|momentum|online|target)_(encoder|network)\.$")
# Of these a layer has two or more
OF_LAYERS = ("weight", "bias", "running_mean", "running_var", "gamma", "beta", "scale", "shift")
# Losses, and metrics: what they hold is of the training, but for layers below a metric's name ("train_head",
# "f1")
LOSS = re.compile(r"(?i)criterion\w*|(\w+_)?loss(es|_\w+|\d+)?")
# torchmetrics' names, or people's for a metric of one phase
METRIC = re.compile(
    r"(?i)(\w+_)?metrics?(_\w+)?|(train|val|valid|validation|test)_\w+|(\w+_)?(acc|accuracy|auroc|f1)"
)
# What torchmetrics counts in, whatever the metric is called
COUNTS = ("tp", "fp", "tn", "fn", "confmat", "total", "correct")
# Mean and standard deviation of pixels, of a class that normalises its images itself
DEVIATION_OF = {"mean": "std", "pixel_mean": "pixel_std", "image_mean": "image_std"}
STATISTICS = (*DEVIATION_OF, *DEVIATION_OF.values())


def with_head(
    inside: Tensors, outside: Tensors, siblings: Tensors, head: str, prefix: str, width: int
) -> tuple[Tensors, Tensors, list[str]]:
    """An encoder's tensors with its head under the format's name for it, `head`; what is left beside
    it; and notes.

    One linear layer at the end is the head: within the encoder below its usual name
    (`heads.0.weight`), or in the class around it under a name that people give heads
    (`model.fc.weight`), or in a state dict of its own (`siblings`). Without any of these, the only
    linear layer there that reads `width` features is the head, if it has the name of a projection or
    of a metric. Anything else stays where it is, and is refused later. Raises VitkitError if the head
    may read something else than the encoder's output.
    """
    own = _own(inside, head)
    if any(map(PROJECTION_LAYER.match, own)) or any(name.startswith(SECOND) for name in inside):
        return inside, outside, []
    if own and PRETRAINED.search(prefix) and not _linear(own):
        rest = {name: lazy for name, lazy in inside.items() if name not in own}
        full = gist(prefix + name for name in own)
        note = f"left out: {full}, the projection that pre-training has in place of a head"
        return rest, outside, [note]

    # Where it is: within the encoder, above it, or in a state dict of its own; nowhere twice
    above = _above(inside, outside, head, prefix)
    tensors = own or above
    notes = []
    if not tensors:
        tensors = {name: lazy for name, lazy in siblings.items() if _is_heads(name.split("."))}
        if tensors and not _linear(tensors):
            raise BadWeights(f"its head is {gist(tensors)}; {remedy(prefix)}")
    if not tensors:  # under a name of the training
        named = {}
        if not prefix:  # the encoder's class itself has it
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
    if is_split:  # into several state dicts, each of which may lie before the head
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
            f"head: the linear layer {called}; what has no weights, such as an activation before it, is "
            "in no file"
        )
    if bias is None:
        bias = lazy_zeros(weight.shape[0])
        notes.append(
            f"head: {called} has no bias, so zeros; a head that normalises what it reads (cosine) computes "
            "something else"
        )
    return {**rest, f"{head}.weight": weight, f"{head}.bias": bias}, outside, notes


def without_head(
    inside: Tensors, outside: Tensors, head: str, prefix: str
) -> tuple[Tensors, list[str]]:
    """An encoder's tensors without a head of any kind, and a note of what was left out."""
    heads = [*_own(inside, head), *(name for name in inside if name.startswith(KNOWN))]
    rest = {name: lazy for name, lazy in inside.items() if name not in heads}
    left = [*(prefix + name for name in heads), *outside]
    notes = []
    if left:
        notes.append(f"left out: {gist(left)}; the encoder alone, as you say")
    return rest, notes


def remedy(prefix: str) -> str:
    """What to do if something beside an encoder of this prefix cannot be read."""
    return f"vitkit's head is one linear layer; to read the encoder without a head: `part={_part(prefix)!r}`"


def _part(prefix: str) -> str:
    """What the part is called that an encoder of this prefix alone is."""
    words = prefix.split(".")[:-1]
    word = ENCODER
    if words:
        word = words[-1]
    if words.count(word) > 1:  # `part` takes the first of them
        word = ".".join(words)
    return word


def names_of_head(names: Iterable[str], head: str) -> set[str]:
    """The names that are of a head, or of a second one."""
    roots = (head.split(".")[0] + ".", *SECOND)
    return {name for name in names if name.startswith(roots)}


def _own(inside: Tensors, head: str) -> Tensors:
    """The tensors below the name of the head within an encoder."""
    root = head.split(".")[0] + "."
    return {
        name: lazy
        for name, lazy in inside.items()
        if name.startswith(root) and not name.startswith(KNOWN)
    }


def _above(inside: Tensors, outside: Tensors, head: str, prefix: str) -> Tensors:
    """The tensors of a head in the class around an encoder. If the encoder has no prefix, that is the
    encoder's class, in which its own head has another name."""
    above = {name: lazy for name, lazy in outside.items() if _is_heads(_beyond(name, prefix))}
    if not prefix:
        for name, lazy in inside.items():
            first = name.split(".")[0]
            if first != head.split(".")[0] and _is_heads([first, ""]):
                above[name] = lazy
    return above


def _check_reads_output(layer: str, inside: Tensors, prefix: str) -> None:
    """Raises VitkitError if the head of somebody's own class may read one of two outputs."""
    for name in READ_OR_NOT:
        if name in inside:
            raise BadWeights(
                f"its head {printable_name(layer)} is that of a class of somebody's own, and nothing "
                f"says whether it reads {printable_name(prefix + name)}; if it does not, save the file "
                "again without that"
            )


def _beyond(name: str, prefix: str) -> list[str]:
    """The words of a name after those that the encoder's prefix begins with too."""
    words = name.split(".")
    for word in prefix.split("."):
        if words[0] == word and len(words) > 1:
            words = words[1:]
        elif words[0].isdecimal() and word.isdecimal():  # of one Sequential with the encoder
            return ["head", *words[1:]]
        else:
            break
    return words


def _is_heads(words: list[str]) -> bool:
    """Whether a tensor of this name is in what people call a head; the last word is the tensor's."""
    layers = words[:-1]
    if any(PROJECTION.fullmatch(word) or _is_of_training(word) for word in layers):
        return False
    return any(HEAD.fullmatch(word) for word in layers)


def _linear(tensors: Tensors) -> str:
    """The linear layer whose weight, and bias if it has one, all these tensors are; "" if they are
    anything else. A convolution of 1 x 1 is none: it may answer for every patch."""
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
    """The tensors of the only layer beside an encoder, if it is linear, reads the encoder's `width`
    features, and has the name of a projection or a metric; none otherwise."""
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
    """Mean and standard deviation of pixels, of a class that normalises its images itself."""

    names: tuple[str, str]
    mean: tuple[float, ...]
    """On the scale from 0 to 1."""
    std: tuple[float, ...]


def statistics_in(tensors: Tensors, channels: int) -> OfPixels | None:
    """The statistics that a class has as buffers beside its encoder; None if there are none, or none that
    pixels have."""
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
        if max(means) > 1:  # of bytes
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
    """The tensors without those beside the encoder that no answer depends on; a note that names
    these; and the others that no rule reads, of the head or beside the encoder.

    Left out are counters, losses, metrics, projections of pre-training, and scalars and vectors, but
    for those of a layer: one with weight and bias, and a vector as long as the encoder is wide may be
    a norm between encoder and head, or an order of features. So may layers that read what the encoder
    gives and give what the head reads, whatever their names, and layers that read the logits.
    `alone`: left out is everything.
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

    # Of training by their names; before a head they may be layers all the same
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
            f"GUESSED: {gist(left)} is of pre-training by its name, beside the model and left out; if it "
            "is the head, vitkit does not read it: its head is one linear layer"
        )
    elif left:
        notes.append(f"left out: {gist(left)}, beside the model")
    if guessed:
        notes.append(
            f"GUESSED: no answer depends on {gist(guessed)}, which is beside the model and left out; a "
            "temperature, for example, changes the probabilities"
        )
    unread = {*left, *guessed}
    rest = {name: lazy for name, lazy in tensors.items() if name not in unread}
    return rest, notes, [name for name in beside if name in rest]


def _may_be_head(name: str, lazy: Lazy, width: int) -> bool:
    """Whether a tensor is the first layer of what may be a head of several, under the name of a predictor."""
    reads = len(lazy.shape) == 2 and lazy.shape[1] == width
    return reads and any(PREDICTOR.fullmatch(word) for word in name.split(".")[:-1])


def _sizes_of_head(tensors: Tensors, rules: list[Rule]) -> tuple[int, int]:
    """The numbers of outputs of the head, and of the features that it reads; 0 without one."""
    heads = [rule.theirs[0] for rule in rules if rule.ours.startswith("head.")]
    for name in heads:
        if name in tensors and len(tensors[name].shape) == 2:
            outputs, features = tensors[name].shape
            return outputs, features
    return 0, 0


def _may_feed_head(tensors: Tensors, width: int, read: int) -> bool:
    """Whether tensors may be layers between an encoder and its head: whether one reads as many features
    as the encoder gives, and one gives as many as the head reads."""
    reads = []
    gives = []
    for name, lazy in tensors.items():
        shape = lazy.shape
        is_of_a_matrix = len(_weight_beside(name, tensors)) > 1  # its bias
        if len(shape) == 1 and not is_of_a_matrix:  # a norm, or factors
            reads.append(shape[0] in (width, read))
            gives.append(shape[0] == read)
        elif len(shape) > 1:
            reads.append(shape[1] in (width, read) or prod(shape[1:]) in (width, read))
            gives.append(shape[0] == read or ".weight_hh_" in name)  # of gates, several a feature
    return any(reads) and any(gives)


def _may_read_logits(tensors: Tensors, vectors: dict[str, set[str]], outputs: int) -> bool:
    """Whether tensors may be layers behind a head: a matrix that reads as many outputs, or a norm of as
    many. One vector alone is a loss's weights of classes. `vectors`: by layer, what it has."""
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
    """The shape of the weight of the layer that a tensor is of."""
    layer = name.rpartition(".")[0]
    weight = tensors.get(f"{layer}.weight")
    if weight is None:
        return ()
    return weight.shape


def _is_count(name: str, lazy: Lazy) -> bool:
    """Whether a tensor is a counter, or of a metric: whole numbers, which no weights are. Others may be
    an order of features or classes."""
    words = name.split(".")
    if lazy.dtype in FLOATS:
        return False
    is_of_training = any(_is_of_training(word) for word in words[:-1])
    return prod(lazy.shape) == 1 or is_of_training or words[-1] in COUNTS


def _is_left_out(name: str, lazy: Lazy, tensors: Tensors) -> bool:
    """Whether a tensor is of a loss, a metric or pre-training by its name, or a counter. Layers are of no
    metric: a weight of two axes, and what lies beside it."""
    words = name.split(".")[:-1] or [name]
    if _is_count(name, lazy) or name == MASK or name.endswith(f".{MASK}"):
        return True
    if any(PROJECTION.fullmatch(word) or LOSS.fullmatch(word) for word in words):
        return True
    is_of_a_metric = any(METRIC.fullmatch(word) for word in words)
    return is_of_a_metric and len(_weight_beside(name, tensors)) < 2


def _is_named_as_training(name: str) -> bool:
    """Whether a tensor is in a layer under the name of a projection or a metric."""
    words = name.split(".")[:-1]
    return any(PROJECTION.fullmatch(word) or METRIC.fullmatch(word) for word in words)


def _is_of_training(word: str) -> bool:
    return bool(LOSS.fullmatch(word) or METRIC.fullmatch(word))
