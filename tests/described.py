"""Values and figures in words, to be compared with what a file beside the tests holds.

Such a file says what people see or repeat: after a change that is meant, write it again as its test says, and read
the difference.
"""

import dataclasses
import inspect
import typing
from collections.abc import Iterator

import numpy as np
from matplotlib.colors import to_hex


def defaults_of(thing: object) -> Iterator[tuple[str, str]]:
    """The defaults of the parameters of a function, of the fields of a dataclass, or of the keys of a
    group of options, as (name, value in words)."""
    if typing.is_typeddict(thing):
        for key, annotation in typing.get_type_hints(thing, include_extras=True).items():
            for extra in getattr(annotation, "__metadata__", ()):
                if dataclasses.is_dataclass(extra):
                    yield key, described(extra)
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            if field.default is not dataclasses.MISSING:
                yield field.name, described(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                yield field.name, described(field.default_factory())
    elif inspect.isfunction(thing):
        for name, parameter in inspect.signature(thing).parameters.items():
            if parameter.default is not parameter.empty:
                yield name, described(parameter.default)


def described(value: object) -> str:
    """A value as Python code, without what is a default of its class, and without sentences."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        usual = dict(defaults_of(type(value)))
        parts = []
        for field in dataclasses.fields(value):
            part = described(getattr(value, field.name))
            if part != usual.get(field.name):
                parts.append(f"{field.name}={part}")
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, dict):
        pairs = [f"{key!r}: {described(each)}" for key, each in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(described, value)))}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(described, value))})"
    if isinstance(value, str) and value.count(" ") > 2:
        return "a text"
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        return "a function" if name.startswith(("_", "<")) else name
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def figure_in_words(figure) -> list[str]:
    """What a figure of matplotlib shows: of each of its axes the titles, the scales, and every line that
    has a name or more than one point, from where to where it goes."""
    lines = []
    for axes in figure.axes:
        titles = (axes.get_title(), axes.get_xlabel(), axes.get_ylabel())
        scales = (axes.get_xscale(), axes.get_yscale())
        rows = [label.get_text() for label in axes.get_yticklabels()] if _has_names(axes) else []
        lines.append(" | ".join(["axes", *titles, *scales, *rows]))
        for drawn in axes.get_lines():
            x, y = (np.ravel(np.asarray(values, float)) for values in drawn.get_data())
            if len(x) > 1 or not drawn.get_label().startswith("_"):
                ends = [f"{values.min():.3g} to {values.max():.3g}" for values in (x, y) if len(x)]
                look = f"{drawn.get_marker()} {drawn.get_linestyle()} {to_hex(drawn.get_color())}"
                name = drawn.get_label().partition("_child")[0]
                lines.append(f"  {name}: {len(x)} points, {', '.join(ends)}; {look}")
        legend = axes.get_legend()
        if legend:
            lines.append("  " + " | ".join(text.get_text() for text in legend.get_texts()))
    return lines


def _has_names(axes) -> bool:
    """Whether the ticks of the y axis are names of rows."""
    return type(axes.yaxis.get_major_formatter()).__name__ == "FixedFormatter"
