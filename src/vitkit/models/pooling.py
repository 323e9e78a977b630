"""The table of poolings: which of the final tokens the head reads, y of Eq. 4, and its replacements in
Appendix D.3 and elsewhere. The layers that compute it are in head.py.

To add a kind: an entry in POOLS, its name in PoolName, and a description at ViTConfig.pool (config.py).

Legend: D width, L blocks, S states of each.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

PoolName = Literal[
    "token",
    "distilled",
    "gap",
    "token-gap",
    "token-quarters",
    "token-gap-quarters",
    "token-pyramid",
    "map",
    "corner",
    "memory",
    "none",
    "patches",
]

# Parts that a pooling concatenates


@dataclass(frozen=True)
class Token:
    """The state of one token."""

    number: int
    """The number of the token; 0 is the class token."""
    states = 1


@dataclass(frozen=True)
class Patch:
    """The state of one patch."""

    number: int
    """The number of the patch in raster order, from 0."""
    states = 1


@dataclass(frozen=True)
class Means:
    """The means of the patches in parts of the image, row by row: a level of a spatial pyramid (Lazebnik
    et al. 2006)."""

    sides: int
    """Rows, and columns, of parts; 1 is the mean of all patches."""

    @property
    def states(self) -> int:
        """The number of parts."""
        return self.sides**2


@dataclass(frozen=True)
class EachPatch:
    """The state of every patch, each for an answer of its own."""

    states = 1


States = Token | Patch | Means | EachPatch


@dataclass(frozen=True)
class Pool:
    """One kind of pooling."""

    name: PoolName
    """The value of ViTConfig.pool."""
    reads: tuple[States, ...]
    """The parts that it concatenates; empty for attention pooling, for a memory bank, and if every token has
    its own output."""
    words: str
    """A description of what the head reads."""

    @property
    def states(self) -> int:
        """S: y is S · D wide."""
        return sum(part.states for part in self.reads) or 1

    @property
    def reads_class_token(self) -> bool:
        """Whether a model needs a class token for it."""
        return Token(0) in self.reads

    @property
    def extends_class_token(self) -> bool:
        """Whether it is the class token, alone or with means of patches: a model keeps its weights if one such
        pooling replaces another."""
        of_patches = all(isinstance(part, Means) for part in self.reads[1:])
        return self.reads_class_token and of_patches

    @property
    def reads_distillation_token(self) -> bool:
        """Whether the pooling reads a token that has its own classifier (DeiT)."""
        return Token(1) in self.reads

    @property
    def can_read_blocks(self) -> bool:
        """Whether the same states of several blocks can be concatenated (ViTConfig.read_blocks)."""
        if self.compares_patches:
            return True
        return bool(self.reads) and not self.reads_distillation_token

    @property
    def compares_patches(self) -> bool:
        """Whether it compares each patch with a memory bank of patches, so that it has an anomaly map."""
        return self.name == "memory"

    @property
    def tokens_read(self) -> int | None:
        """The number of tokens, counted from the first, that it reads; None for all."""
        tokens = [part.number for part in self.reads if isinstance(part, Token)]
        if not tokens or len(tokens) < len(self.reads):
            return None
        return 1 + max(tokens)

    def places_in(self, wider: "Pool") -> list[int]:
        """The positions of its states among those of a pooling that has all of its parts: (S,)."""
        start: dict[States, int] = {}
        count = 0
        for part in wider.reads:
            start[part] = count
            count += part.states
        places: list[int] = []
        for part in self.reads:
            places += range(start[part], start[part] + part.states)
        return places


CLASS_TOKEN = Token(0)
MEAN = Means(1)
QUARTERS = Means(2)
SIXTEENTHS = Means(4)

_ALL = (
    Pool("token", (CLASS_TOKEN,), "the class token"),
    Pool("distilled", (CLASS_TOKEN, Token(1)), "the class token and the distillation token"),
    Pool("gap", (MEAN,), "the mean of the patches"),
    Pool("token-gap", (CLASS_TOKEN, MEAN), "the class token and the mean of the patches"),
    Pool(
        "token-quarters",
        (CLASS_TOKEN, QUARTERS),
        "the class token and the means of the image's four quarters",
    ),
    Pool(
        "token-gap-quarters",
        (CLASS_TOKEN, MEAN, QUARTERS),
        "the class token, the mean of the patches and those of the image's four quarters",
    ),
    Pool(
        "token-pyramid",
        (CLASS_TOKEN, MEAN, QUARTERS, SIXTEENTHS),
        "the class token, the mean of the patches and those of the image's four quarters and sixteen parts",
    ),
    Pool("map", (), "the learned query of attention pooling (MAP)"),
    Pool("corner", (Patch(0),), "the first patch"),
    Pool("memory", (), "the distances of the patches to those of a memory bank"),
    Pool("none", (), "every token"),
    Pool("patches", (EachPatch(),), "every patch"),
)
POOLS: dict[str, Pool] = {pool.name: pool for pool in _ALL}
"""Every kind of pooling, by its name."""

_WIDEST = max(_ALL, key=lambda pool: pool.states)
NESTED = tuple(
    pool for pool in _ALL if pool.reads and pool.reads == _WIDEST.reads[: len(pool.reads)]
)
"""The class token, and poolings that each read everything the one before reads, and more."""


class FeatureSet(NamedTuple):
    """The input of a head: the states of a pooling, from each of the last blocks."""

    pool: PoolName
    """The name of the pooling."""
    blocks: int = 1
    """L, counted from the last block."""

    def numbers(self, width: int) -> int:
        """The number of features for a model of this width: L · S · D."""
        return self.blocks * POOLS[self.pool].states * width


OF_THE_PAPER = FeatureSet("token")
"""Eq. 4: the class token of the last block."""
