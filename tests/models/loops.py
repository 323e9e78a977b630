"""What attention computes, written as slow, obvious loops."""

import math

import torch


def attention_by_loops(attention, tokens, table=None):
    """Attention of one sequence (T, D), by loops over heads, queries and keys, with the vectors of
    the offsets, (2T - 1, D_h)."""
    count, width = tokens.shape
    head_width = width // attention.heads
    qkv = tokens @ attention.qkv.weight.T + attention.qkv.bias
    q, k, v = qkv.split(width, 1)
    mixed = torch.zeros_like(tokens)
    for h in range(attention.heads):
        head = slice(h * head_width, (h + 1) * head_width)
        for i in range(count):
            logits = []
            for j in range(count):
                logit = q[i, head] @ k[j, head]
                if table is not None:
                    logit = logit + q[i, head] @ table[i - j + count - 1]  # query minus key
                logits.append(logit / math.sqrt(head_width))
            weights = torch.stack(logits).softmax(0)
            for j in range(count):
                mixed[i, head] += weights[j] * v[j, head]
    return mixed @ attention.out.weight.T + attention.out.bias


def initialised(mixer):
    """A part of a model, in float64, with its first weights."""
    mixer = mixer.double()
    for module in mixer.modules():
        if hasattr(module, "init_weights"):
            module.init_weights()
    return mixer
