"""A Vision Transformer in one file: the model, its training, its evaluation, and what it looks at.

    python examples/vit_in_one_file.py

trains a small Vision Transformer on scikit-learn's handwritten digits, 1,797 grey images of 8 x 8
pixels. Nothing is downloaded. It takes about a minute on one core, and the model classifies 97 % of
359 test images correctly.

The model is that of "An Image is Worth 16x16 Words" (Dosovitskiy et al. 2021). Comments name the
paper's equations: 1 to 4 are in Section 3.1, and 5 to 8 in Appendix A. The file needs PyTorch, NumPy
and scikit-learn. It does not import vitkit, but computes the same numbers as `vitkit train digits`
with the settings below: tests/test_one_file.py compares the two bit by bit.

Legend, as in the paper: B images in a batch, P side of a patch, N patches, D width, H heads (the
paper's k), D_h = D / H width of a head, L blocks, K classes; z are the states of the tokens.
"""

import math
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

# The model
IMAGE = 8  # pixels on each side
PATCH = 2  # P, so that N = (8 / 2)² = 16
WIDTH = 64  # D
DEPTH = 4  # L
MLP = 128  # width of the hidden layer of a block's MLP
HEADS = 4  # H
CLASSES = 10  # K

# Its training
SEED = 0
STEPS = 2000
WARMUP = 100  # steps in which the learning rate rises from 0
BATCH = 64  # B
RATE = 3e-3  # the highest learning rate
DECAY = 0.1  # weight decay of the kernels
CLIP = 1.0  # the largest norm of a gradient
SMOOTHING = 0.1  # share of a target that is spread over all classes
SHIFT = 1  # pixels by which a training image is shifted at most


# The model, from its smallest part to the whole


class Attention(nn.Module):
    """Multi-head self-attention: MSA of Equation 2, which is Equations 5 to 8."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)  # U_qkv of all heads
        self.out = nn.Linear(WIDTH, WIDTH)  # U_msa

    def forward(self, z: Tensor) -> Tensor:
        """(B, N + 1, D) -> (B, N + 1, D)."""
        q, k, v = self.project(z)  # Eq. 5
        heads = self.weights(q, k) @ v  # Eq. 6, 7  (B, H, N + 1, D_h)
        return self.out(heads.transpose(1, 2).flatten(2))  # Eq. 8

    def project(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eq. 5, [q, k, v] = z U_qkv: (B, N + 1, D) -> three times (B, H, N + 1, D_h)."""
        qkv = self.qkv(z).unflatten(-1, (3, HEADS, WIDTH // HEADS))  # (B, N + 1, 3, H, D_h)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Eq. 6, A = softmax(q kᵀ / √D_h): how much each token (a row) takes from each token (a
        column), (B, H, N + 1, N + 1)."""
        q = q * q.shape[-1] ** -0.5
        return (q @ k.mT).softmax(-1)


class Block(nn.Module):
    """A block of the encoder: attention and an MLP, each after a LayerNorm, with a residual
    connection around both (Equations 2 and 3)."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.expand = nn.Linear(WIDTH, MLP)
        self.contract = nn.Linear(MLP, WIDTH)

    def forward(self, z: Tensor) -> Tensor:
        """(B, N + 1, D) -> (B, N + 1, D)."""
        z = self.attention(self.norm1(z)) + z  # Eq. 2
        return self.mlp(self.norm2(z)) + z  # Eq. 3

    def mlp(self, z: Tensor) -> Tensor:
        """Two layers with a GELU between them: (B, N + 1, D) -> (B, N + 1, D)."""
        return self.contract(F.gelu(self.expand(z), approximate="tanh"))


class VisionTransformer(nn.Module):
    """Images to logits (Equations 1 to 4 and the head)."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)  # E, of each P x P patch
        self.class_token = nn.Parameter(torch.empty(1, 1, WIDTH))  # x_class
        patches = (IMAGE // PATCH) ** 2  # N
        self.positions = nn.Parameter(torch.empty(1, patches + 1, WIDTH))  # E_pos
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, 1, 8, 8) -> logits (B, K)."""
        z = self.embed(images)  # Eq. 1
        for block in self.blocks:
            z = block(z)  # Eq. 2, 3
        y = self.norm(z)[:, 0]  # Eq. 4: LN(z_L), of the class token
        return self.head(y)

    def embed(self, images: Tensor) -> Tensor:
        """Eq. 1, z_0 = [x_class; x_p E] + E_pos: (B, 1, 8, 8) -> (B, N + 1, D)."""
        x = self.embedding(images).flatten(2).mT  # (B, N, D)
        class_token = self.class_token.expand(len(x), -1, -1)
        return torch.cat([class_token, x], 1) + self.positions

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """The initial weights of the published code. Norms keep PyTorch's: scale 1, bias 0."""
        torch.manual_seed(seed)
        # Eq. 1: E is normal, cut off at two standard deviations, of which 0.88 remain, with the
        # variance 1 / P² (the number of inputs)
        std = (PATCH * PATCH) ** -0.5 / 0.87962566103423978
        nn.init.trunc_normal_(self.embedding.weight, std=std, a=-2 * std, b=2 * std)
        nn.init.zeros_(self.embedding.bias)
        nn.init.zeros_(self.class_token)
        nn.init.normal_(self.positions, std=0.02)
        for block in self.blocks:
            # Eq. 2: q, k, v and U_msa are four matrices of D x D, each Glorot-uniform
            limit = (3 / WIDTH) ** 0.5
            for layer in (block.attention.qkv, block.attention.out):
                nn.init.uniform_(layer.weight, -limit, limit)
                nn.init.zeros_(layer.bias)
            # Eq. 3
            for layer in (block.expand, block.contract):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)
        # The head is zero, so that all classes are equally likely at first
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


# The images


def load_images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The digits to train on and those to test on, a fifth of each class. Images are uint8
    (images, 1, 8, 8), labels int64 (images,)."""
    digits = load_digits()
    levels = (digits.images * (255 / 16)).round().astype(np.uint8)  # from 0 to 16 in the file
    images = torch.from_numpy(levels)[:, None]
    labels = torch.from_numpy(digits.target)

    is_test = torch.zeros(len(labels), dtype=torch.bool)
    random = np.random.default_rng(0)
    for label in range(CLASSES):
        members = random.permutation(np.flatnonzero(digits.target == label))
        is_test[members[: round(0.2 * len(members))]] = True
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def normalise(images: Tensor) -> Tensor:
    """uint8 from 0 to 255 -> float32 from -1 to 1."""
    return (images / 255 - 0.5) / 0.5


def random_numbers(purpose: int, epoch: int, example: int = 0) -> np.random.Generator:
    """Random numbers for the order of an epoch (purpose 0), or for the shift of an example in an
    epoch (1). They depend on nothing else, so a batch can be made without those before it."""
    counter = (0, 0, epoch, example)
    return np.random.Generator(np.random.Philox(key=(SEED, purpose), counter=counter))


@cache
def order_of(epoch: int, count: int) -> np.ndarray:
    """The numbers of all training images in the order of an epoch."""
    return random_numbers(0, epoch).permutation(count)


def training_batch(images: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step, uint8 (B, 1, 8, 8) and int64 (B,): epochs are laid end to end, and cut
    into batches. Each image is shifted at random; the pixels that become free are black."""
    padded = F.pad(images, [SHIFT] * 4)
    batch = []
    examples = []
    for position in range(step * BATCH, (step + 1) * BATCH):
        epoch, place = divmod(position, len(images))
        example = int(order_of(epoch, len(images))[place])
        random = random_numbers(1, epoch, example)
        top = random.integers(2 * SHIFT + 1)
        left = random.integers(2 * SHIFT + 1)
        batch.append(padded[example, :, top : top + IMAGE, left : left + IMAGE])
        examples.append(example)
    return torch.stack(batch), labels[examples]


# Training


def train(
    model: VisionTransformer, images: Tensor, labels: Tensor, steps: int, warmup: int
) -> list[float]:
    """Train a model by Adam with decoupled weight decay (Section 4.1); returns the loss of each
    step."""
    # Only kernels decay: the weights of dense layers and of the embedding
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    kernels = [layer.weight for layer in layers]
    others = [p for p in model.parameters() if not any(p is kernel for kernel in kernels)]
    groups = [{"params": kernels, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), fused=True)

    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, warmup)
        batch, batch_labels = training_batch(images, labels, step)
        targets = F.one_hot(batch_labels, CLASSES) * (1 - SMOOTHING) + SMOOTHING / CLASSES
        loss = F.cross_entropy(model(normalise(batch)), targets)

        optimizer.zero_grad()
        loss.backward()
        clip_gradient(model)
        optimizer.step()

        losses.append(loss.item())
        if step % 100 == 0:
            print(f"step {step:5,}  loss {loss.item():.4f}")
    return losses


def learning_rate(step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step: it rises linearly, then falls to 0 along half a cosine wave."""
    progress = max(step - warmup, 0) / (steps - warmup)
    cosine = 0.5 * RATE * (1 + math.cos(math.pi * progress))
    return cosine * min(1, step / warmup)


def clip_gradient(model: nn.Module) -> None:
    """Scale the gradient down to the norm CLIP if it is longer (Table 3)."""
    gradients = [p.grad for p in model.parameters()]
    norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]
    norm = torch.stack(norms).square().sum().sqrt().float()
    for gradient in gradients:
        gradient *= (CLIP / norm).clamp(max=1)


# What it has learned


@torch.no_grad()
def accuracy(model: VisionTransformer, images: Tensor, labels: Tensor) -> float:
    """The share of images (images, 1, 8, 8) whose most likely class is the right one."""
    predicted = model(normalise(images)).argmax(-1)
    return (predicted == labels).float().mean().item()


@torch.no_grad()
def rollout(model: VisionTransformer, images: Tensor) -> Tensor:
    """Attention Rollout (Figure 6; Abnar and Zuidema 2020): how much of each patch arrives in the
    class token. (B, 1, 8, 8) -> (B, 4, 4).

    The attention of a block is averaged over its heads, and the identity, which is the residual
    connection, is added. The product of all blocks says what the last states take from the first.
    """
    z = model.embed(normalise(images))
    product = torch.eye(z.shape[1])
    for block in model.blocks:
        q, k, _ = block.attention.project(block.norm1(z))
        step = block.attention.weights(q, k).mean(1) + torch.eye(z.shape[1])  # (B, N + 1, N + 1)
        product = step / step.sum(-1, keepdim=True) @ product
        z = block(z)
    side = IMAGE // PATCH
    return product[:, 0, 1:].unflatten(-1, (side, side))  # from the patches to the class token


def drawn(image: Tensor, highest: float) -> list[str]:
    """An image, (height, width), as lines of text: two characters a pixel, denser up to `highest`."""
    shades = " .:-=+*#%@"
    lines = []
    for row in image.tolist():
        characters = [shades[min(int(10 * value / highest), 9)] * 2 for value in row]
        lines.append("".join(characters))
    return lines


def main() -> None:
    """Train a model, test it, and show four test images with what it looks at."""
    (images, labels), (test_images, test_labels) = load_images()
    model = VisionTransformer()
    model.init_weights(SEED)
    train(model, images, labels, STEPS, WARMUP)
    print(f"{accuracy(model, test_images, test_labels):.1%} of {len(test_labels)} test images")

    shown = test_images[:4]
    maps = rollout(model, shown).repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    for image, attention, logits in zip(shown, maps, model(normalise(shown)), strict=True):
        print(f"\na {logits.argmax()}; the image, and beside it what the model looks at")
        pairs = zip(drawn(image[0], 255), drawn(attention, attention.max().item()), strict=True)
        print("\n".join("   ".join(pair) for pair in pairs))


if __name__ == "__main__":
    main()
