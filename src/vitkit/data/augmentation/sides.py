"""Classes that a mirrored image does not keep, by their names: those of the left and of the right."""

import re
from collections.abc import Sequence

OPPOSITES = (
    ("left", "right"),
    ("l", "r"),
    ("lt", "rt"),
    ("lh", "rh"),
    ("east", "west"),
    ("clockwise", "counterclockwise"),
    ("clockwise", "anticlockwise"),
    ("sinister", "dexter"),
    ("links", "rechts"),
    ("linke", "rechte"),
    ("linker", "rechter"),
    ("linkes", "rechtes"),
    ("gauche", "droit"),
    ("gauche", "droite"),
    ("izquierda", "derecha"),
    ("izquierdo", "derecho"),
    ("sinistra", "destra"),
    ("sinistro", "destro"),
)
"""Words that a mirrored image exchanges."""
SURE = OPPOSITES[0]
"""Words that say so alone; of the others, both must be there: "L4" and "R4", but not a "links" of a chain."""
LONG = 4  # letters of a word that is also found inside of others, as in "leftlung" and "rightlung"


def sided(labels: Sequence[str]) -> list[str]:
    """The classes that a mirrored image exchanges with others."""
    names = {label: _words(label) for label in labels}
    known = {"".join(words) for words in names.values()}
    found = []
    for label, words in names.items():
        is_sure = any(word.startswith(SURE) for word in words)
        if is_sure or known & _mirrored(words) - {"".join(words)}:
            found.append(label)
    return found


def _words(label: str) -> list[str]:
    """The words and numbers of a name, in small letters: ["left", "lung", "2"] of "leftLung_2"."""
    spaced = re.sub(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", label)
    return re.findall(r"\d+|[^\W\d_]+", spaced.lower())


def _mirrored(words: list[str]) -> set[str]:
    """The names, without spaces, that a name becomes if one word or part of a word is exchanged."""
    names = set()
    for one, other in (*OPPOSITES, *(pair[::-1] for pair in OPPOSITES)):
        exchanged = [other if word == one else word for word in words]
        names.add("".join(exchanged))
        if len(one) >= LONG:
            names.add("".join(words).replace(one, other))
    return names
