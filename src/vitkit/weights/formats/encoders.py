"""Common code of all formats of Vision Transformers: the parts from the patches to the head, as a table of
rules, and the settings that follow from shapes.

A format defines the names of the parts (`PartNames`) and the storage of its library's arrays
(`ArrayStorage`).
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from vitkit.models import ViTConfig
from vitkit.weights.files.content import Tensors
from vitkit.weights.formats.shapes import count_blocks, length_of, shape_of
from vitkit.weights.rules import (
    CONVOLUTION,
    DENSE,
    QUERY_AND_REST,
    SAME,
    THREE,
    TWO,
    Rule,
    Transform,
    flax_out,
    flax_qkv,
    flax_qkv_bias,
    for_each_block,
    layer,
    rule,
)

Ends = tuple[str, str]
"""Ends of the names of a layer's weight and bias."""


class BlockNames(NamedTuple):
    """Names of the layers in an encoder's block, or in attention pooling."""

    prefix: str
    """Prefix of every name; {i} represents the block's number."""
    qkv: tuple[str, ...]
    """Names of one layer; of queries, keys and values; or of queries, and keys and values together."""
    out: str
    norm: str
    """The norm before the MLP."""
    expand: str
    contract: str
    first_norm: str = ""
    """The norm before attention."""
    qk_norms: tuple[str, str] = ("", "")
    """The norms of queries and keys."""
    scales: tuple[str, str] = ("", "")
    """The factors of LayerScale."""
    gated: tuple[tuple[str, ...], str] | None = None
    """Names of `expand` and `contract` in a SwiGLU, if they differ. The gate and the layer that it
    multiplies may be separate."""
    qkv_ends: Ends | None = None
    """Ends of the names in `qkv`, if they are not the library's usual ones."""


class PartNames(NamedTuple):
    """Names of the parts of a Vision Transformer; "" for a part that the format does not have."""

    patches: str
    positions: str
    block: BlockNames
    norm: str
    cls: str = ""
    registers: str = ""
    embedding_norm: str = ""
    probe: str = ""
    pool: BlockNames | None = None
    """The layers of attention pooling."""
    representation: str = ""
    head: str = ""
    distilled: tuple[str, str] = ("", "")
    """The heads on the class token and on the distillation token."""


class ArrayStorage(NamedTuple):
    """Storage of the arrays of a library's layers."""

    ends: Ends
    norm_ends: Ends
    convolution: Transform
    dense: Transform
    qkv: Callable[[int, int], tuple[Transform, Transform]]
    """(number of heads, number of layers) -> transforms of weights and biases to those of one layer."""
    out: Callable[[int], Transform]
    """Number of heads -> transform of the projection after attention."""
    cls: Transform = SAME


def _torch_qkv(heads: int, layers: int) -> tuple[Transform, Transform]:
    """Transforms of queries, keys and values in PyTorch."""
    joined = {1: SAME, 2: QUERY_AND_REST, 3: THREE}[layers]
    return joined, joined


def _flax_qkv(heads: int, layers: int) -> tuple[Transform, Transform]:
    """Transforms of queries, keys and values in flax."""
    return flax_qkv(heads), flax_qkv_bias(heads)


PYTORCH = ArrayStorage(
    ends=(".weight", ".bias"),
    norm_ends=(".weight", ".bias"),
    convolution=SAME,
    dense=SAME,
    qkv=_torch_qkv,
    out=lambda heads: SAME,
)
FLAX = ArrayStorage(
    ends=("/kernel", "/bias"),
    norm_ends=("/scale", "/bias"),
    convolution=CONVOLUTION,
    dense=DENSE,
    qkv=_flax_qkv,
    out=flax_out,
)


def encoder_rules(
    config: ViTConfig, names: PartNames, arrays: ArrayStorage = PYTORCH, positions: Transform = SAME
) -> list[Rule]:
    """The rules of a Vision Transformer; of a hybrid without its ResNet. positions: transform of the
    library's position table to vitkit's."""
    # Patches. CLIP projects them without a bias
    table = layer("stem.project", names.patches, arrays.convolution, arrays.ends)
    if config.embedding_norm and not config.stem:
        table = table[:1]

    # Tokens and their positions
    if config.has_class_token:
        table.append(rule("cls", names.cls, transform=arrays.cls))
    if config.registers:
        table.append(rule("registers", names.registers))
    if config.positions == "learned":
        table.append(rule("positions.table", names.positions, transform=positions))
    if config.embedding_norm:
        table += _norm("embedding_norm", names.embedding_norm, config, arrays)

    # Encoder
    table += for_each_block(config.depth, _block_rules(config, names.block, arrays))
    table += _norm("norm", names.norm, config, arrays)

    # Pooling and head
    if config.pool == "map":
        table += _pool_rules(config, names, arrays)
    if config.representation:
        table += layer("representation", names.representation, arrays.dense, arrays.ends)
    if config.classes and config.pool == "distilled":
        table += layer("head.token", names.distilled[0])
        table += layer("head.distilled", names.distilled[1])
    elif config.classes:
        table += layer("head", names.head, arrays.dense, arrays.ends)
    return table


def _block_rules(config: ViTConfig, block: BlockNames, arrays: ArrayStorage) -> list[Rule]:
    """The rules of a block, with {i} in place of its number."""
    qkv_weight, qkv_bias, *out = _attention_rules("blocks.{i}.attention", config, block, arrays)
    table = _norm("blocks.{i}.norm1", block.prefix + block.first_norm, config, arrays)
    table.append(qkv_weight)
    if config.qkv_bias:
        table.append(qkv_bias)
    table += out
    if config.qk_norm:
        for letter, name in zip("qk", block.qk_norms, strict=True):
            ours = f"blocks.{{i}}.attention.{letter}_norm"
            table += _norm(ours, block.prefix + name, config, arrays)
    table += _norm("blocks.{i}.norm2", block.prefix + block.norm, config, arrays)
    table += _mlp_rules("blocks.{i}.mlp", block, arrays, gated=config.swiglu)
    if config.layer_scale is not None:
        for number, name in enumerate(block.scales, 1):
            table.append(rule(f"blocks.{{i}}.scale{number}.gamma", block.prefix + name))
    return table


def _pool_rules(config: ViTConfig, names: PartNames, arrays: ArrayStorage) -> list[Rule]:
    """The rules of attention pooling, whose query is a parameter."""
    pool = names.pool
    assert pool is not None  # formats without attention pooling refuse such a model
    return [
        rule("pool.probe", names.probe),
        *_attention_rules("pool.attention", config, pool, arrays),
        *_norm("pool.norm", pool.prefix + pool.norm, config, arrays),
        *_mlp_rules("pool.mlp", pool, arrays),
    ]


def _norm(ours: str, theirs: str, config: ViTConfig, arrays: ArrayStorage) -> list[Rule]:
    """The rules of a norm; an RMSNorm has no bias."""
    table = layer(ours, theirs, ends=arrays.norm_ends)
    if config.rms_norm:
        return table[:1]
    return table


def _attention_rules(
    ours: str, config: ViTConfig, block: BlockNames, arrays: ArrayStorage
) -> list[Rule]:
    """Four rules: weight and bias of queries, keys and values, and of the projection after them."""
    transforms = arrays.qkv(config.heads, len(block.qkv))
    names = [block.prefix + name for name in block.qkv]
    return [
        *_joined(f"{ours}.qkv", names, transforms, block.qkv_ends or arrays.ends),
        *layer(f"{ours}.out", block.prefix + block.out, arrays.out(config.heads), arrays.ends),
    ]


def _mlp_rules(
    ours: str, block: BlockNames, arrays: ArrayStorage, gated: bool = False
) -> list[Rule]:
    """The rules of an MLP, or of a SwiGLU if `gated`."""
    expand: tuple[str, ...] = (block.expand,)
    contract = block.contract
    if gated and block.gated:
        expand, contract = block.gated
    transforms = (arrays.dense, SAME)
    if len(expand) == 2:
        transforms = (TWO, TWO)
    names = [block.prefix + name for name in expand]
    return [
        *_joined(f"{ours}.expand", names, transforms, arrays.ends),
        *layer(f"{ours}.contract", block.prefix + contract, arrays.dense, arrays.ends),
    ]


def _joined(
    ours: str, theirs: Sequence[str], transforms: tuple[Transform, Transform], ends: Ends
) -> list[Rule]:
    """The two rules of a layer that consists of one or several layers of the library."""
    table = []
    for kind, end, transform in zip(("weight", "bias"), ends, transforms, strict=True):
        parts = [name + end for name in theirs]
        table.append(rule(f"{ours}.{kind}", *parts, transform=transform))
    return table


def settings_of(tensors: Tensors, names: PartNames, arrays: ArrayStorage = PYTORCH) -> dict:
    """The settings of a ViTConfig that follow from shapes, for any library. The channels of a hybrid are
    those of its ResNet's feature map. Raises VitkitError for shapes that are not those of a model."""
    weight, bias = arrays.ends
    norm_weight, _ = arrays.norm_ends
    block = names.block

    # Shapes in PyTorch's order: (D, C, h, w) and (D, M)
    kernel = torch.empty(shape_of(tensors, names.patches + weight, 4), device="meta")
    width, channels, *patch = arrays.convolution.read(kernel).shape
    first = block.prefix.replace("{i}", "0")
    contract = torch.empty(shape_of(tensors, first + block.contract + weight, 2), device="meta")
    mlp = arrays.dense.read(contract).shape[1]

    registers = 0
    if names.registers and names.registers in tensors:
        registers = shape_of(tensors, names.registers, 3)[1]
    numbered = re.escape(block.prefix).replace(re.escape("{i}"), r"(\d+)")
    qkv_bias = first + block.qkv[0] + (block.qkv_ends or arrays.ends)[1]
    return {
        "width": width,
        "depth": count_blocks(tensors, numbered),
        "mlp": mlp,
        "patch": tuple(patch),
        "channels": channels,
        "classes": length_of(tensors, names.head + bias),
        "class_token": names.cls in tensors,
        "registers": registers,
        "rms_norm": _is_without_bias(tensors, first + block.norm, arrays),
        "qk_norm": bool(block.qk_norms[0]) and first + block.qk_norms[0] + norm_weight in tensors,
        "qkv_bias": qkv_bias in tensors,
        "representation": length_of(tensors, names.representation + bias),
    }


def _is_without_bias(tensors: Tensors, norm: str, arrays: ArrayStorage) -> bool:
    """Whether a norm has a weight without a bias, like an RMSNorm."""
    weight, bias = arrays.norm_ends
    return norm + weight in tensors and norm + bias not in tensors
