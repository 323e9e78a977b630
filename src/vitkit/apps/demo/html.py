"""The pieces of `vitkit app`'s page that are HTML and CSS.

Text from outside, as names of classes and files are, is escaped where it becomes HTML.
"""

from vitkit.apps.demo.viewer import Answer, Viewer
from vitkit.inspection import Block, join, tag
from vitkit.prediction import likely
from vitkit.system.console.text import printable_name
from vitkit.weights import Activation

# Light and dark are gradio's own
STYLE = """
.gradio-container {
  --vk-faint: #59636e; --vk-bar: #b9ddd5; --vk-box: #f3f5f7; --vk-problem: #b3261e;
  width: 100% !important; max-width: 78rem !important; margin: 0 auto !important;
  padding: 1.5rem 1rem 3rem !important;
}
.dark .gradio-container, .dark.gradio-container {
  --vk-faint: #9aa4af; --vk-bar: #1f5d52; --vk-box: #1c2229; --vk-problem: #ff8a80;
}
footer { display: none !important }
.vk { overflow-wrap: anywhere; color: var(--body-text-color); font-size: 1rem; line-height: 1.45 }
.vk h2 { font-size: 1.125rem; font-weight: 600; margin: 0; line-height: 1.35 }
.vk p { margin: 0 }
.vk .faint { color: var(--vk-faint); font-size: .875rem }
.vk .problem { color: var(--vk-problem) }
.vk ol { list-style: none; margin: 0; padding: 0 }
.vk li {
  position: relative; display: flex; gap: 1rem; justify-content: space-between; overflow: hidden;
  margin: 0 0 .3rem; padding: .35rem .65rem; border-radius: .35rem; background: var(--vk-box);
}
.vk li i { position: absolute; inset: 0 auto 0 0; background: var(--vk-bar) }
.vk li span { position: relative }
.vk li:first-child { font-weight: 600 }
.vk .number { font-variant-numeric: tabular-nums; white-space: nowrap }
.columns { gap: 2rem !important }
.columns > .column { gap: .75rem !important }
.frame { background: var(--vk-box) !important; border-radius: .5rem !important }
#photo img { width: 100% !important; height: 100% !important; object-fit: contain !important }
.looks button { display: flex; align-items: center; justify-content: center }
.looks img {
  width: auto !important; height: auto !important; max-width: 100%; max-height: 100%;
  cursor: crosshair;
}
.columns .form, .corrections .form { background: none !important; gap: 1rem !important }
.back { align-self: start; width: auto !important; font-weight: 400 !important }
.part { margin-top: 1.5rem }
.corrections { align-items: end !important; gap: .75rem !important }
.gradio-container main { padding: 0 !important; max-width: none !important; width: 100% }
@media (min-width: 48rem) { .columns .one-line :is(h2, p) { white-space: nowrap; overflow: hidden; text-overflow: ellipsis } }
@media (max-width: 40rem) { .frame { height: 21rem !important } }
"""


def photograph_heading() -> str:
    """The heading of the first column."""
    hint = "Drop, choose or paste one, or use the camera."
    return _whole(tag("h2", "Photograph"), tag("p", hint, "faint"))


def model_heading(viewer: Viewer) -> str:
    """The name of a model, and what it is."""
    return _whole(tag("h2", printable_name(viewer.name)), tag("p", viewer.facts, "faint"))


def corrections_heading() -> str:
    """The heading of the last part of the page."""
    hint = (
        "Say what is on the photograph. Corrections stay here until you download them, as a table "
        "with the photographs beside it."
    )
    return _whole(tag("h2", "Is it wrong?"), tag("p", hint, "faint"))


def answers(answer: Answer, activation: Activation) -> str:
    """The most likely classes as bars, best first; as numbers alone, if they are not probabilities."""
    if not answer.classes:
        text = "The model has no trained head, so it names no classes."
        return _whole(tag("p", text, "faint"))
    items = []
    for label, value in answer.classes:
        name = tag("span", printable_name(label))
        if activation == "none":
            items.append(tag("li", join([name, tag("span", f"{value:.4g}", "number")])))
            continue
        bar = Block(f"<i style='width:{100 * min(max(value, 0), 1):.1f}%'></i>")
        items.append(tag("li", join([bar, name, tag("span", f"{value:.1%}", "number")])))
    return _whole(tag("ol", join(items)), *_doubt(answer))


def _doubt(answer: Answer) -> list[Block]:
    """What the model's limits say, as a sentence; nothing if they say nothing."""
    if answer.doubt.unknown:
        sentence = (
            "Unknown: it is unlike the photographs that the model has learned from, so it may be "
            "none of these."
        )
        return [tag("p", sentence, "problem")]
    labels, probabilities = zip(*answer.classes, strict=True)
    possible = likely(labels, probabilities, answer.doubt.possible)
    if len(possible) > 1:
        names = ", ".join(map(printable_name, possible))
        return [tag("p", f"It may also be: {names}.", "faint")]
    return []


def problem(sentence: str) -> str:
    """The HTML of an error sentence."""
    return _whole(tag("p", sentence, "problem"))


def note(sentence: str) -> str:
    """A sentence that says something else."""
    return _whole(tag("p", sentence))


def caption(sentence: str) -> str:
    """The caption of the picture above."""
    return _whole(tag("p", sentence, "faint"))


def _whole(*blocks: Block) -> str:
    """Blocks in the element that the styles above are for."""
    return tag("div", join(blocks), "vk")
