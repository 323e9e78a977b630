"""The page of `vitkit app`, made with gradio.

What happens on it is in answers.py, and how it is served in server.py. A person's photograph
and corrections live in states of their own session, and nowhere else.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitkit.apps.demo import html
from vitkit.apps.demo.answers import (
    ALL,
    FOLDER,
    MEAN,
    ONE,
    Choice,
    answer_file,
    correct,
    look,
    reader_of,
    write_zip,
)
from vitkit.apps.demo.viewer import Viewer, patch_at

if TYPE_CHECKING:
    import gradio as gr


HEIGHT = 440  # pixels of a picture on the page
NOTHING_YET = "What the model looks at is shown here."


class Parts(NamedTuple):
    """The parts of the page that belong to one model."""

    picture: "gr.Image"
    caption: "gr.HTML"
    layers: "gr.Radio"
    controls: "gr.Row"
    layer: "gr.Slider"
    head: "gr.Dropdown"
    query: "gr.State"
    back: "gr.Button"


def build(viewers: Sequence[Viewer], folder: Path) -> "gr.Blocks":
    """The page for one model, or for two side by side. `folder` holds what was uploaded, and what is to
    be downloaded."""
    import gradio as gr

    title = " and ".join(viewer.name for viewer in viewers)
    with gr.Blocks(
        title=f"{title} - vitkit", analytics_enabled=False, delete_cache=(600, 3600)
    ) as page:
        current = gr.State(None)
        with gr.Row(elem_classes="columns"):
            with gr.Column(min_width=260):
                gr.HTML(html.photograph_heading(), padding=False, elem_classes="one-line")
                photo = gr.Image(
                    type="filepath",
                    image_mode=None,
                    show_label=False,
                    height=HEIGHT,
                    buttons=[],
                    placeholder="Drop a photograph here\nor click to choose one",
                    elem_id="photo",
                    elem_classes="frame",
                )
                status = gr.HTML(padding=False, elem_id="status")
                answers = []
                if len(viewers) == 1:  # what it says on the left, what it looks at on the right
                    answers.append(gr.HTML(padding=False, elem_id="answers-1"))
            parts = []
            for number, viewer in enumerate(viewers):
                with gr.Column(min_width=260, elem_id=f"model-{number + 1}"):
                    parts.append(_add_model(viewer, number, current))
                    if len(viewers) > 1:
                        answers.append(gr.HTML(padding=False, elem_id=f"answers-{number + 1}"))
        _add_corrections(current, viewers, folder)
        _answer_photographs(photo, [current, status, *answers], viewers, parts, folder)
    return page


def _add_model(viewer: Viewer, number: int, current: "gr.State") -> Parts:
    """A column with what a model looks at."""
    import gradio as gr

    has_map = bool(viewer.layers)
    heads = [MEAN, *(str(i + 1) for i in range(viewer.heads))]
    gr.HTML(html.model_heading(viewer), padding=False, elem_classes="one-line")
    picture = gr.Image(
        interactive=False,
        show_label=False,
        height=HEIGHT,
        format="jpeg",
        buttons=[],
        elem_classes=["frame", "looks"],
        alt_text="What the model looks at",
    )
    caption = gr.HTML(html.caption(NOTHING_YET), padding=False)
    back_to = ""
    if has_map:
        back_to = f"Where {reader_of(viewer)} looks"
    layers = gr.Radio([ALL, ONE], value=ALL, show_label=False, container=False, visible=has_map)
    with gr.Row(visible=False) as controls:
        layer = gr.Slider(
            1,
            max(len(viewer.layers), 2),  # gradio refuses a slider of one value
            value=max((len(viewer.layers) + 1) // 2, 1),
            step=1,
            label="Layer",
            visible=len(viewer.layers) > 1,
        )
        head = gr.Dropdown(heads, value=MEAN, label="Head", filterable=False)
    back = gr.Button(back_to, visible=False, size="sm", elem_classes="back")
    query = gr.State(None)
    parts = Parts(picture, caption, layers, controls, layer, head, query, back)
    if has_map:
        _look_on_request(viewer, number, current, parts)
    return parts


def _look_on_request(viewer: Viewer, number: int, current: "gr.State", parts: Parts) -> None:
    """Draw the model's attention anew when somebody chooses a layer, a head or a patch."""
    import gradio as gr

    def show(state, *choice):
        if state is None:
            return gr.skip()
        return look(state, number, viewer, Choice(*choice))

    def choose_layers(layers):
        return gr.update(visible=layers == ONE)

    def choose_patch(state, click: gr.SelectData):
        if state is None:
            return gr.skip()
        x, y = click.index
        view = state.photograph.views[number]
        query = patch_at(x, y, view.pixels.shape[:2], viewer.grid(view), view.tiling)
        return query, ONE, gr.update(visible=True), gr.update(visible=True)

    def forget_patch():
        return None, gr.update(visible=False)

    inputs = [current, parts.layers, parts.layer, parts.head, parts.query]
    outputs = [parts.picture, parts.caption]
    for event in (parts.layer.input, parts.head.input):
        _on(event, show, inputs, outputs)

    mode_chosen = _on(parts.layers.input, choose_layers, [parts.layers], [parts.controls])
    _on(mode_chosen.then, show, inputs, outputs)

    changed = [parts.query, parts.layers, parts.controls, parts.back]
    patch_chosen = _on(parts.picture.select, choose_patch, [current], changed)
    _on(patch_chosen.then, show, inputs, outputs)

    forgotten = _on(parts.back.click, forget_patch, [], [parts.query, parts.back])
    _on(forgotten.then, show, inputs, outputs)


def _answer_photographs(
    photo: "gr.Image",
    outputs: list["gr.Component"],
    viewers: Sequence[Viewer],
    parts: Sequence[Parts],
    folder: Path,
) -> None:
    """Answer each photograph that arrives, in all columns.

    outputs: where the state goes, the sentence about it, and the answers of each model. folder: where
    uploaded photographs are."""
    import gradio as gr

    current = outputs[0]

    def answer(payload):
        state, sentence = answer_file(payload, viewers, folder)
        updates = [state, sentence]
        for i, viewer in enumerate(viewers):
            text = ""
            if state is not None:
                text = html.answers(state.answers[i], viewer.classifier.activation)
            updates.append(text)
        # The patch that looked was one of another photograph
        for _ in viewers:
            updates += [None, gr.update(visible=False)]
        return updates

    for part in parts:
        outputs = [*outputs, part.query, part.back]
    # Not preprocessed: gradio would open the file with Pillow, without our limits and sentences. So it
    # does not check that the file is one that was uploaded either: answer_file does
    answered = photo.change(
        answer,
        [photo],
        outputs,
        preprocess=False,
        show_progress_on=[part.picture for part in parts],
        api_visibility="private",
        trigger_mode="always_last",
    )

    def show(number, viewer, state, *choice):
        if state is None:
            return None, html.caption(NOTHING_YET)
        return look(state, number, viewer, Choice(*choice))

    for number, (viewer, part) in enumerate(zip(viewers, parts, strict=True)):
        inputs = [current, part.layers, part.layer, part.head, part.query]
        _on(answered.then, partial(show, number, viewer), inputs, [part.picture, part.caption])


def _add_corrections(current: "gr.State", viewers: Sequence[Viewer], folder: Path) -> None:
    """The part of the page that says what is right, and gives it away as a file."""
    import gradio as gr

    labels = []
    for viewer in viewers:
        labels += [name for name in viewer.classifier.labels if name not in labels]
    corrections = gr.State(())
    gr.HTML(html.corrections_heading(), padding=False, elem_classes="part")
    with gr.Row(elem_classes="corrections"):
        label = gr.Dropdown(
            labels, value=None, allow_custom_value=True, label="What it is", scale=3, min_width=240
        )
        save = gr.Button("Correct the label", min_width=160)
        download = gr.Button("Download corrections", min_width=160, visible=False)
    said = gr.HTML(padding=False)
    file = gr.DownloadButton(visible="hidden", elem_id="corrections-file")

    def add(state, known, name):
        known, sentence = correct(state, known, name)
        return known, sentence, gr.update(visible=bool(known)), None

    def pack(known):
        path = Path(tempfile.mkdtemp(dir=folder)) / f"{FOLDER}.zip"
        write_zip(known, path)
        return str(path)

    _on(save.click, add, [current, corrections, label], [corrections, said, download, label])
    packed = _on(download.click, pack, [corrections], [file])
    packed.then(None, js="() => document.querySelector('#corrections-file').click()")


def _on(event: Callable, function: Callable, inputs: list, outputs: list) -> "gr.Dependency":
    """Call a function when something happens on the page; of what happens meanwhile only the last
    counts. No program can call it by name from outside."""
    return event(
        function,
        inputs,
        outputs,
        show_progress="hidden",
        trigger_mode="always_last",
        api_visibility="private",
    )
