"""What lies beside an encoder in checkpoints of people's own training: its head, under whatever name and
at whatever depth; and losses, metrics and counters, which no answer depends on.
"""

import re

from vitkit.system.console.text import as_word
from vitkit.weights.files import FLOATS, Lazy, Tensors, lazy_zeros
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
    r"|(\w+_)?(projector|predictor)\w*|mask_token"
)
# Parts of an encoder that a head of somebody's own class may read, or pass by: Transformers' pooler and
# attention pooling, DeiT's second token
READ_OR_NOT = ("pooler.dense.weight", "head.probe", "dist_token", "embeddings.distillation_token")
# Heads that are projections by their own layers' names, as DINO's and iBOT's
PROJECTION_LAYER = re.compile(r"head\.(mlp|last_layer)")
# Encoders of contrastive pre-training (MoCo, BYOL), whose projection has the name of the head
PRETRAINED = re.compile(r"(base|momentum|online|target)_(encoder|network)\.$")
# Of these a layer has two or more
OF_LAYERS = ("weight", "bias", "running_mean", "running_var", "gamma", "beta", "scale", "shift")
# Losses and metrics: what they hold is of the training
LOSS = re.compile(
    r"(?i)criterion\w*|(\w+_)?loss(es|_\w+|\d+)?|(\w+_)?metrics?(_\w+)?"
    r"|(train|val|valid|validation|test)_\w+|(\w+_)?(acc|accuracy|auroc|f1)"
)


def with_head(
    inside: Tensors, outside: Tensors, siblings: Tensors, head: str, prefix: str
) -> tuple[Tensors, Tensors, list[str]]:
    """An encoder's tensors with its head under the format's name for it, `head`; what is left beside
    it; and notes.

    One linear layer at the end is the head: within the encoder below its usual name
    (`heads.0.weight`), or in the class around it under a name that people give heads
    (`model.fc.weight`), or in a state dict of its own (`siblings`). Anything else stays where it is,
    and is refused later. Raises ValueError if the head may read something else than the encoder's
    output.
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
    if not tensors:
        tensors = {name: lazy for name, lazy in siblings.items() if _is_heads(name.split("."))}
        if tensors and not _linear(tensors):
            raise ValueError(f"its head is {gist(tensors)}; {remedy(prefix)}")
    layer = _linear(tensors)
    if not layer or (own and above):
        return inside, outside, []

    # Under the format's name
    rest = {name: lazy for name, lazy in inside.items() if name not in tensors}
    outside = {name: lazy for name, lazy in outside.items() if name not in tensors}
    weight = tensors[f"{layer}.weight"]
    bias = tensors.get(f"{layer}.bias")
    notes = []
    if layer != head:
        _check_reads_output(layer, inside, prefix)
        notes.append(
            f"head: the linear layer {layer}; what has no weights, such as an activation before it, is "
            "in no file"
        )
    if bias is None:
        bias = lazy_zeros(weight.shape[0])
        notes.append(
            f"head: {layer} has no bias, so zeros; a head that normalises what it reads (cosine) computes "
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
    words = prefix.split(".")[:-1]
    word = ENCODER
    if words:
        word = words[-1]
    if words.count(word) > 1:  # --part takes the first of them
        word = ".".join(words)
    return (
        "vitkit's head is one linear layer; to read the encoder without a head: "
        f"--part {as_word(word)}"
    )


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
    """Raises ValueError if the head of somebody's own class may read one of two outputs."""
    for name in READ_OR_NOT:
        if name in inside:
            raise ValueError(
                f"its head {layer} is that of a class of somebody's own, and nothing says whether it "
                f"reads {prefix}{name}; if it does not, save the file again without that"
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
    if any(PROJECTION.fullmatch(word) or LOSS.fullmatch(word) for word in layers):
        return False
    return any(HEAD.fullmatch(word) for word in layers)


def _linear(tensors: Tensors) -> str:
    """The linear layer whose weight, and bias if it has one, all these tensors are; "" if they are
    anything else."""
    layers = {name.rpartition(".")[0] for name in tensors}
    if len(layers) != 1:
        return ""
    (layer,) = layers
    leaves = {name.rpartition(".")[2]: lazy for name, lazy in tensors.items()}
    weight = leaves.pop("weight", None)
    bias = leaves.pop("bias", None)
    if weight is None or leaves or weight.dtype not in FLOATS:
        return ""
    is_matrix = len(weight.shape) == 2 or (len(weight.shape) == 4 and weight.shape[2:] == (1, 1))
    if not is_matrix or (bias is not None and bias.shape != weight.shape[:1]):
        return ""
    return layer


def without_unread(
    tensors: Tensors, rules: list[Rule], width: int, prefix: str, alone: bool
) -> tuple[Tensors, list[str], list[str]]:
    """The tensors without those beside the encoder that no answer depends on; a note that names
    these; and the others that no rule reads, of the head or beside the encoder.

    Left out are counters, losses, metrics, projections of pre-training, and scalars and vectors, but
    for those of a layer: one with weight and bias, and a vector as long as the encoder is wide may be
    a norm between encoder and head. `alone`: left out is everything.
    """
    known = {name for rule in rules for name in rule.theirs}
    roots = {name.split(".")[0] for name in known}
    beside = [name for name in tensors if name not in known and name.split(".")[0] not in roots]
    vectors: dict[str, set[str]] = {}
    for name in beside:
        layer, _, leaf = name.rpartition(".")
        if layer and tensors[name].shape and leaf in OF_LAYERS:
            vectors.setdefault(layer, set()).add(leaf)

    left = []
    guessed = []
    for name in beside:
        layer, _, _ = name.rpartition(".")
        is_one_of_a_layer = len(vectors.get(layer, ())) > 1
        is_of_the_encoders_class = not layer and not prefix
        if alone or _is_of_training(name, tensors[name]):
            left.append(name)
        elif is_one_of_a_layer or is_of_the_encoders_class or len(tensors[name].shape) > 1:
            continue
        elif tensors[name].shape != (width,):
            guessed.append(name)
    notes = []
    if left:
        notes.append(f"left out: {gist(left)}, beside the model")
    if guessed:
        notes.append(
            f"GUESSED: no answer depends on {gist(guessed)}, which is beside the model and left out; a "
            "temperature, for example, changes the probabilities"
        )
    unread = {*left, *guessed}
    rest = {name: lazy for name, lazy in tensors.items() if name not in unread}
    return rest, notes, [name for name in beside if name in rest]


def _is_of_training(name: str, lazy: Lazy) -> bool:
    """Whether a tensor is of a loss, a metric or pre-training, or a counter, which no weight is."""
    words = name.split(".")[:-1] or [name]
    is_of_training = any(LOSS.fullmatch(word) or PROJECTION.fullmatch(word) for word in words)
    return is_of_training or lazy.dtype not in FLOATS
