"""What the tests of other libraries' models share: small sizes, random weights, and the same
outputs."""

import json

import torch
from torch import nn

from vitkit.models import Model

TIMM = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 7,
}
TRANSFORMERS = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
}
# A text tower beside one of images
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def randomised(model: nn.Module) -> nn.Module:
    """The model with random values of its own in every parameter: zeros and ones, or the same
    values in two, would hide that one is taken for the other."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def assert_same_outputs(
    theirs: nn.Module, ours: Model, image=(32, 32), read=lambda output: output, tolerance=1e-5
) -> None:
    """`read` gets the tensor out of what their model returns."""
    images = torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = read(theirs.eval()(images))
        torch.testing.assert_close(ours(images), expected, atol=tolerance, rtol=tolerance)


def assert_same_state(ours: nn.Module, other: nn.Module) -> None:
    """Every tensor is the same, to the bit."""
    expected = other.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def shapes_written(format, config, state) -> dict[str, torch.Size]:
    """The shapes that a format gives the tensors of a model, by its names."""
    shapes = {}
    for rule in format.rules(config):
        parts = rule.transform.write(state[rule.ours])
        for name, part in zip(rule.theirs, parts, strict=True):
            shapes[name] = part.shape
    return format.spell(shapes, config, "")


def edit(folder, *within, file="config.json", **fields) -> None:
    """Change fields of a JSON file in a model directory, of the object `within`; None takes one away."""
    values = json.loads((folder / file).read_text())
    inner = values
    for key in within:
        inner = inner[key]
    for name, value in fields.items():
        inner.pop(name, None)
        if value is not None:
            inner[name] = value
    (folder / file).write_text(json.dumps(values))
