"""Token merging: exactly r a block, and what an explicit loop over tokens gives."""

import math

import pytest
import torch

from vitkit.models import Merging, create, tokens_left, vit
from vitkit.models.shortcuts import merged

SMALL = vit("mu/8", image=(32, 48), classes=5, depth=3, width=24, heads=3, mlp=48)


def slow_merged(z, sizes, keys, r):
    """The same of one image, token by token, in Python's own numbers and lists."""
    first = list(range(0, len(z), 2))
    second = list(range(1, len(z), 2))
    pairs = []
    for a in first[1:]:  # not the class token
        cosines = {}
        for b in second:
            product = sum(x * y for x, y in zip(keys[a], keys[b], strict=True))
            cosines[b] = product / math.hypot(*keys[a]) / math.hypot(*keys[b])
        partner = max(cosines, key=cosines.get)
        pairs.append((cosines[partner], a, partner))
    pairs = sorted(pairs, reverse=True)[:r]

    gone = {a for _, a, _ in pairs}
    rows = []
    for token in [*(a for a in first if a not in gone), *second]:
        members = [token, *(a for _, a, b in pairs if b == token)]
        size = sum(sizes[i] for i in members)
        mean = []
        for channel in range(len(z[0])):
            mean.append(sum(sizes[i] * z[i][channel] for i in members) / size)
        rows.append((mean, size))
    return [mean for mean, _ in rows], [size for _, size in rows]


@pytest.mark.parametrize("tokens", [4, 9, 24, 25])
@pytest.mark.parametrize("r", [1, 4, 100])
def test_it_is_the_explicit_one(tokens, r):
    generator = torch.Generator().manual_seed(tokens)
    z = torch.randn(3, tokens, 5, generator=generator, dtype=torch.float64)
    keys = torch.randn(3, tokens, 4, generator=generator, dtype=torch.float64)
    sizes = torch.randint(1, 6, (3, tokens), generator=generator).double()
    given, given_sizes = merged(z, sizes, keys, r)
    most = min(r, (tokens - 1) // 2)
    assert given.shape == (3, tokens - most, 5)
    for image in range(3):
        rows, counts = slow_merged(
            z[image].tolist(), sizes[image].tolist(), keys[image].tolist(), most
        )
        torch.testing.assert_close(given[image], torch.tensor(rows, dtype=torch.float64))
        assert given_sizes[image].tolist() == counts
    torch.testing.assert_close(given[:, 0], z[:, 0])  # the class token is alone


def slow_answer(model, image, r):
    """The whole model on one image, with the attention written out: each token as often as it has
    patches."""
    z = model.embed(image[None])[0]
    sizes = [1.0] * len(z)
    for number, block in enumerate(model.blocks):
        q, k, v = (each[0] for each in block.attention.project(block.norm1(z)[None]))
        times = torch.tensor(sizes).long()
        repeated_keys = k.repeat_interleave(times, 1)
        repeated_values = v.repeat_interleave(times, 1)
        weights = (q @ repeated_keys.mT / k.shape[-1] ** 0.5).softmax(-1)
        z = z + block.attention.join((weights @ repeated_values)[None])[0]
        if number < len(model.blocks) - 1:
            most = min(r, (len(z) - 1) // 2)
            rows, sizes = slow_merged(z.tolist(), sizes, k.mean(0).tolist(), most)
            z = torch.tensor(rows)
        z = z + block.mlp(block.norm2(z))
    return model.head(model.norm(z)[0])


@torch.no_grad()
def test_a_model_is_the_explicit_one_image_by_image():
    model = create(SMALL, seed=0).eval()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(1))
    given = Merging(model, 5)(images)
    for image, logits in zip(images, given, strict=True):
        torch.testing.assert_close(logits, slow_answer(model, image, 5), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(Merging(model, 0)(images), model(images), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(given, model(images), atol=1e-3)


def test_the_tokens_that_are_left_are_counted():
    """They are those that the last block gets."""
    model = create(SMALL, seed=0).eval()
    seen = []
    model.blocks[-1].norm1.register_forward_hook(lambda _, given, out: seen.append(out.shape[1]))
    for r in (1, 9, 12):
        Merging(model, r)(torch.zeros(1, 3, 32, 48))
        assert tokens_left(SMALL, r) == seen[-1]
    assert tokens_left(SMALL, 9) == 25 - 9 - 7  # of 15 patches seven merge


def test_what_cannot_be_merged_is_a_sentence():
    with pytest.raises(ValueError, match="13 tokens .* has 24 patches; give 12 or fewer"):
        Merging(create(SMALL, seed=0), 13)
    with pytest.raises(ValueError, match="a number from 0"):
        Merging(create(SMALL, seed=0), -1)
    for other in (vit("mu/8", image=32, pool="gap"), vit("mu/8", image=32, positions="relative")):
        with pytest.raises(ValueError, match="answer by a class token alone"):
            Merging(create(other, seed=0), 2)
