"""Find the part of a file that is the model: in a training checkpoint with a model and its average, in a
state dict with a student and a teacher, in a class with an encoder and other modules.

An encoder is found by the names of its tensors, whatever keys and prefixes precede them.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from vitkit.system.console.text import printable_name, some
from vitkit.system.errors import BadSettings, BadWeights
from vitkit.weights.beside import ENCODER, OfPixels, remedy, statistics_in, with_head, without_head
from vitkit.weights.files.content import Parts, Tensors
from vitkit.weights.files.directory import Opened
from vitkit.weights.files.pytorch import OPTIMISERS
from vitkit.weights.formats import names, recognise
from vitkit.weights.formats.format import Format, prefixes_of
from vitkit.weights.formats.timm.config import architecture_name

READ = "part: "
"""Beginning of the note on which of several parts was read."""
NATIVE_HEAD = "head"
"""Name of the head in vitkit's own files. They are read unchanged unless the head is left out."""
ROOT = "root"
"""Name of an encoder without a key or prefix, if there are others."""
# Words that wrappers insert into names: torch.compile, FSDP, activation checkpointing, DeepSpeed
INSERTED = re.compile(
    r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
)
# Names of models whose weights are averages of another's during training. For momentum encoders (MoCo,
# BYOL), the authors' own code uses the other model.
AVERAGE = re.compile(r"(?i)(.*_)?(ema|swa|avg|averaged?|teacher|target_encoder)(_.*)?")
MOMENTUM = re.compile(r"(?i)(.*_)?(momentum|encoder_k|key_encoder|target)(_.*)?")
# Names of the best model of a training, and of the model that it began with
BEST = re.compile(r"(?i)(.*_)?best(_.*)?")
UNTRAINED = re.compile(r"(?i)(.*_)?(init|initial|untrained)(_.*)?")
MOST = 100  # most encoders in a file
Shapes = dict[str, tuple[int, ...]]


class Encoder(NamedTuple):
    """An encoder in a file."""

    format: Format
    keys: tuple[str, ...]
    """Keys that lead to its state dict."""
    prefix: str
    """Prefix of its names in the state dict."""
    state: Tensors
    """All tensors of the state dict."""

    @property
    def path(self) -> list[str]:
        """The words of keys and prefix."""
        return [word for text in (*self.keys, self.prefix) for word in text.split(".") if word]

    @property
    def words_of_keys(self) -> int:
        """The number of words in `path` that come from keys."""
        return len([word for key in self.keys for word in key.split(".") if word])

    def shapes(self) -> Shapes:
        """The shapes of the encoder's tensors without its head."""
        head = self.format.head.split(".")[0]
        shapes = {}
        for name, lazy in self.state.items():
            inner = name.removeprefix(self.prefix)
            is_of_head = head and inner.startswith(head)
            if name.startswith(self.prefix) and not is_of_head:
                shapes[inner] = lazy.shape
        return shapes


class Taken(NamedTuple):
    """The part of a file that is read."""

    opened: Opened
    """The file with only the state dict that is read, and the key of that state dict."""
    format: Format
    tensors: Tensors
    """The encoder's tensors without their prefix, its head, and other tensors beside it."""
    prefix: str
    """The prefix of the encoder's names."""
    alone: bool
    """Whether to read the encoder without anything beside it."""
    notes: tuple[str, ...]
    statistics: OfPixels | None = None
    """Mean and standard deviation with which a class around the encoder normalises its images."""

    @property
    def remedy(self) -> str:
        """The remedy if tensors beside the encoder cannot be read."""
        return remedy(self.prefix)


def take(opened: Opened, part: str | None = None) -> Taken:
    """The part of a file that is the model: the one that the user names, or the choice of `_choose`. Raises
    VitkitError if there is none, or if the choice is ambiguous."""
    parts = {keys: _without_inserted(tensors) for keys, tensors in opened.parts.items()}
    everything = _encoders_in(parts)
    encoders = [encoder for encoder in everything if not _is_of_optimiser(encoder)] or everything
    if not encoders:
        tensors = max(parts.values(), key=len)
        model = opened.config.get("model_type") or architecture_name(opened.config)
        called_so = ""
        if model:
            called_so = f"; config.json calls it {printable_name(model)}"
        listed = some([printable_name(name) for name in tensors], 3)
        raise BadWeights(
            f"its {len(tensors)} tensors ({listed}) have the names of no Vision "
            f"Transformer, hybrid or BiT that vitkit knows{called_so}; it knows {', '.join(names())}"
        )

    # The encoder, and which tensors around it belong to the model
    wanted, alone = _encoders_named(encoders, part)
    encoder, note = _choose(wanted, encoders)
    around = 0
    if part and not alone:
        around = _position_after(encoder.path, part)
        note = f"read: {part}, as set"
    inside, outside = _split(encoder, everything, around)
    width, channels = _sizes(encoder, inside)
    statistics = statistics_in({**inside, **outside}, channels)
    if statistics:
        inside = _without(inside, statistics.names)
        outside = _without(outside, statistics.names)
    siblings = {}
    if not part:
        siblings = _siblings(encoder, everything, parts)

    # Its head
    head = encoder.format.head
    if alone:
        head = head or NATIVE_HEAD
    tensors = inside
    head_notes: list[str] = []
    if head and alone:
        tensors, head_notes = without_head(inside, outside, head, encoder.prefix)
        outside = {}
    elif head:
        tensors, outside, head_notes = with_head(
            inside, outside, siblings, head, encoder.prefix, width
        )
    weight = tensors.get(f"{head}.weight")
    if "vit" in encoder.format.kinds and weight is not None and len(weight.shape) != 2:
        raise BadWeights(
            f"its {head}.weight has the shape {weight.shape}; {remedy(encoder.prefix)}"
        )
    twice = [name for name in outside if name in tensors]
    if twice:
        called = printable_name(twice[0])
        raise BadWeights(
            f"it has {called} twice, also as {printable_name(encoder.prefix)}{called}, but vitkit's model has "
            f"a place for only one; {remedy(encoder.prefix)}"
        )
    wrapper = next(reversed(encoder.keys), "")
    return Taken(
        opened=replace(opened, parts={encoder.keys: encoder.state}, wrapper=wrapper),
        format=encoder.format,
        tensors={**tensors, **outside},
        prefix=encoder.prefix,
        alone=alone,
        notes=tuple(text for text in (note, *head_notes) if text),
        statistics=statistics,
    )


def _sizes(encoder: Encoder, inside: Tensors) -> tuple[int, int]:
    """The width of an encoder, and the channels of its images, from its first weight; 0 and 3 if they
    cannot be derived."""
    first = inside.get(encoder.format.first)
    if first is None or len(first.shape) < 2:
        return 0, 3
    if len(first.shape) == 4:
        return first.shape[0], first.shape[1]
    return first.shape[0], 3


def _without(tensors: Tensors, names: tuple[str, ...]) -> Tensors:
    """The tensors without those with these names."""
    return {name: lazy for name, lazy in tensors.items() if name not in names}


def is_as_its_library_saves(opened: Opened) -> bool:
    """Whether a model has its library's own names, so that the library opens it: without a wrapper's prefix,
    and not in a user's class, whose head the library would ignore."""
    taken = take(opened)
    usual = ("", "vit.", "deit.", "vision_model.", f"{opened.config.get('model_type')}.")
    is_wrapped = any(INSERTED.search(name) for name in opened.tensors)
    is_of_library = taken.prefix in usual and not taken.notes and taken.statistics is None
    return is_of_library and not is_wrapped


def _without_inserted(tensors: Tensors) -> Tensors:
    """Remove words that wrappers inserted into names."""
    plain = {}
    for name, lazy in tensors.items():
        if ".lora_A." in name or ".lora_B." in name:
            raise BadWeights(
                "it holds matrices of LoRA beside the weights that they change "
                f"({printable_name(name)}); merge them first (model.merge_and_unload()), and save the "
                "state dict of what that returns"
            )
        plain[INSERTED.sub("", name)] = lazy
    if len(plain) < len(tensors):
        raise BadWeights(
            "some of its names differ only by words that torch.compile or FSDP inserted"
        )
    return plain


def _encoders_in(parts: Parts) -> list[Encoder]:
    """All encoders in a file."""
    encoders = []
    for keys, tensors in parts.items():
        format = recognise(tensors)
        if format is not None:
            prefixes = [""]
            if format.first:
                prefixes = prefixes_of(tensors, format.first) or prefixes
            encoders += [Encoder(format, keys, prefix, tensors) for prefix in prefixes[:MOST]]
        if len(encoders) >= MOST:
            raise BadWeights(f"it holds {MOST} encoders or more; save one of them alone")
    return encoders


def _is_of_optimiser(encoder: Encoder) -> bool:
    """Whether an encoder's tensors are moments of an optimiser, which it has for each parameter."""
    return any(OPTIMISERS.fullmatch(word) for word in encoder.path)


# Choosing an encoder


def _short_names(encoders: list[Encoder]) -> list[str]:
    """A name for each encoder: the first word of its path that not all share, if these are unique; otherwise
    the whole path."""
    paths = [encoder.path for encoder in encoders]
    common = 0
    shortest = min(len(path) for path in paths)
    while common < shortest and len({path[common] for path in paths}) == 1:
        common += 1
    if len(paths) == 1:
        common = 0
    words = [".".join(path[common : common + 1]) or ROOT for path in paths]
    short = []
    for word, path in zip(words, paths, strict=True):
        if words.count(word) > 1:
            word = ".".join(path) or ROOT
        short.append(printable_name(word))
    return short


def _encoders_named(encoders: list[Encoder], part: str | None) -> tuple[list[Encoder], bool]:
    """The encoders with the name that the user gives, and whether to read one without a head. Raises
    VitkitError if there is no such part."""
    if part is None:
        return encoders, False
    if part == ROOT and [] in (encoder.path for encoder in encoders):
        return [encoder for encoder in encoders if not encoder.path], False
    wanted = [encoder for encoder in encoders if _position_after(encoder.path, part)]
    if wanted:
        return wanted, False
    if part == ENCODER and (encoders[0].format.head or encoders[0].format.library == "vitkit"):
        return encoders, True
    if len(encoders) > 1:
        raise BadSettings(
            f"it has no part {part!r}; its parts are {_listed(_short_names(encoders))}"
        )
    path = printable_name(".".join(encoders[0].path))
    if not path:
        raise BadSettings(f"it has no part {part!r}; it is one model, so leave out `part`")
    raise BadSettings(f"it has no part {part!r}; its only model is {path}, so leave out `part`")


def _position_after(path: list[str], part: str) -> int:
    """The number of words in a path up to the end of `part`, where it first occurs; 0 if it does not."""
    words = part.split(".")
    for start in range(len(path) - len(words) + 1):
        if path[start : start + len(words)] == words:
            return start + len(words)
    return 0


def _choose(wanted: list[Encoder], encoders: list[Encoder]) -> tuple[Encoder, str]:
    """The encoder to read, and a note if there are others.

    1. An average over the training is preferred to the model that it is an average of, which has equal
       shapes. A teacher with another architecture is not an average.
    2. A trained encoder is preferred to its momentum encoder and to the encoder that its training began
       with. The best of a training is preferred to its others.
    3. The first state dict in a file is preferred to the others. Several encoders within one, such as
       those of an ensemble, are ambiguous: VitkitError.
    """
    if len(wanted) == 1:
        note = ""
        if len(encoders) > 1:
            note = _note(wanted[0], encoders, "")
        return wanted[0], note
    names = _short_names(wanted)
    shapes = [encoder.shapes() for encoder in wanted]
    is_average = [_has_word(AVERAGE, name) for name in names]
    plain = [i for i, average in enumerate(is_average) if not average]
    averages = [i for i, average in enumerate(is_average) if average]
    untrained = [i for i, name in enumerate(names) if _has_word(UNTRAINED, name)]
    trained = [i for i in plain if i not in untrained]
    averages_of = {i: [j for j in trained if _averages(shapes[i], shapes[j])] for i in averages}

    # 1. Averages
    for i in averages:
        if averages_of[i]:
            of = _listed([names[j] for j in averages_of[i]])
            return wanted[i], _note(wanted[i], wanted, f", by its name the average of {of}")

    # 2. Untrained and momentum encoders, and the best
    candidates = trained or averages or plain
    own = [i for i in candidates if not _has_word(MOMENTUM, names[i])]
    candidates = own or candidates
    best = [i for i in candidates if _has_word(BEST, names[i])]
    candidates = best or candidates
    first = candidates[0]
    if len(candidates) == 1:
        others = _listed([names[i] for i in range(len(wanted)) if i != first])
        return wanted[first], _note(wanted[first], wanted, f", not {others}")

    # 3. The first one
    if any(wanted[i].keys == wanted[first].keys for i in candidates[1:]):
        listed = _listed([names[i] for i in candidates])
        raise BadWeights(
            f"it holds several encoders, {listed}, and it is unknown which of them is the model; set "
            f"it: `part={names[first]!r}`"
        )
    listed = _listed([names[i] for i in candidates])
    return wanted[first], _note(wanted[first], wanted, f", the first of {listed}")


def _averages(shapes: Shapes, of: Shapes) -> bool:
    """Whether a model with these shapes may be an average of another one, which may have further tensors
    beside its blocks, such as a student's mask embedding (iBOT)."""
    more = of.keys() - shapes.keys()
    return shapes.items() <= of.items() and not any(re.search(r"\d", name) for name in more)


def _has_word(pattern: re.Pattern, name: str) -> bool:
    """Whether a word of a name matches a pattern."""
    return any(pattern.fullmatch(word) for word in name.split("."))


def _note(chosen: Encoder, encoders: list[Encoder], why: str) -> str:
    """The note on which part is read, and how to read another."""
    names = _short_names(encoders)
    own = names[encoders.index(chosen)]
    other = next((name for name in names if name != own), own)
    return f"{READ}{own}{why} (otherwise: `part={other!r}`)"


def _listed(names: list[str]) -> str:
    """Names as text: "model and ema"."""
    if len(names) < 3:
        return " and ".join(names)
    return some(names)


# Tensors around an encoder


def _split(encoder: Encoder, encoders: list[Encoder], around: int) -> tuple[Tensors, Tensors]:
    """The encoder's tensors without their prefix; and the other tensors in its state dict, within the first
    `around` words of its path, except other encoders and what belongs to them."""
    prefix = encoder.prefix
    own = prefix.split(".")[:-1]
    within = ""
    if around > encoder.words_of_keys:
        words = own[: around - encoder.words_of_keys]
        within = "".join(f"{word}." for word in words)

    # The branch of another encoder begins where its prefix differs from this one's
    others = []
    for other in encoders:
        if other.keys != encoder.keys or other.prefix == prefix:
            continue
        theirs = other.prefix.split(".")[:-1]
        common = 0
        while common < min(len(own), len(theirs)) and own[common] == theirs[common]:
            common += 1
        if common < len(theirs):
            others.append("".join(f"{word}." for word in theirs[: common + 1]))
        else:  # this encoder is within the other, which has everything but this one's branch
            within = within or "".join(f"{word}." for word in own[: common + 1])

    inside = {}
    outside = {}
    for name, lazy in encoder.state.items():
        if name.startswith(tuple(others)) or not name.startswith(within):
            continue
        if name.startswith(prefix):
            inside[name.removeprefix(prefix)] = lazy
        else:
            outside[name] = lazy
    return inside, outside


def _siblings(encoder: Encoder, encoders: list[Encoder], parts: Parts) -> Tensors:
    """Tensors of state dicts beside the encoder's own, as in {"backbone": ..., "head": ...}, by key and
    name; except other encoders."""
    siblings: Tensors = {}
    if not encoder.keys:
        return siblings
    models = [each.keys for each in encoders]
    for keys, tensors in parts.items():
        if keys and keys[:-1] == encoder.keys[:-1] and keys not in models:
            siblings |= {f"{keys[-1]}.{name}": lazy for name, lazy in tensors.items()}
    return siblings
