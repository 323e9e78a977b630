"""Google's names for hybrids' and ResNets' arrays: tables of (ours, theirs, turn), one function a family.

`turn` names how an array of theirs becomes a tensor of ours; `{b}` and `{u}` count stages and units from 1, `{i}` blocks from 0.
"""

import torch

TURNS = {
    "same": lambda a: a,
    "norm": lambda a: a.flatten(),  # stored (1, 1, 1, C) in places
    "conv": lambda a: a.permute(3, 2, 0, 1),  # HWIO
    "dense": lambda a: a.mT,
    "qkv": lambda *a: torch.cat([one.flatten(1).mT for one in a]),  # (D, H, E) each
    "qkv bias": lambda *a: torch.cat([one.flatten() for one in a]),
    "out": lambda a: a.flatten(0, 1).mT,  # (H, E, D)
}
NORM = (("weight", "scale"), ("bias", "bias"))
UNIT = [(f"{part}.weight", f"{theirs}/kernel", "conv") for part, theirs in
        (("conv1", "conv1"), ("conv2", "conv2"), ("conv3", "conv3"), ("shortcut", "conv_proj"))] + [
        (f"{part}.{ours}", f"{theirs}/{name}", "norm") for part, theirs in
        (("norm1", "gn1"), ("norm2", "gn2"), ("norm3", "gn3"), ("shortcut_norm", "gn_proj")) for ours, name in NORM]  # fmt: skip


def backbone(config, root="", unit="unit{u}", below=""):
    """Root and stages; a name that a model of ours does not have (a shortcut, a norm of it) is dropped by `read`."""
    table = [(f"{below}root.conv.weight", f"{root}conv_root/kernel", "conv")]
    table += [(f"{below}root.norm.{ours}", f"gn_root/{name}", "norm") for ours, name in NORM]
    block = 0
    for b, count in enumerate(config.units, 1):
        for u in range(1, count + 1):
            where = f"block{b}/{unit.format(u=u)}"
            table += [(f"{below}blocks.{block}.{ours}", f"{where}/{theirs}", turn) for ours, theirs, turn in UNIT]
            block += 1
    return table


def resnet(config):
    """big_vision's bit.py (post-activation) and bit_paper.py (pre-activation)."""
    head = [("head.weight", "head/kernel", "dense"), ("head.bias", "head/bias", "same")]
    if config.backbone.order == "post":
        return backbone(config.backbone) + head
    last = [(f"norm.{ours}", f"norm-pre-head/{name}", "norm") for ours, name in NORM]
    return backbone(config.backbone, "root_block/", "unit{u:02d}") + last + head


def hybrid(config):
    """The official vision_transformer repository's."""
    table = backbone(config.stem, below="stem.")
    table += [("stem.project.weight", "embedding/kernel", "conv"), ("stem.project.bias", "embedding/bias", "same")]
    table += [("cls", "cls", "same"), ("positions.table", "Transformer/posembed_input/pos_embedding", "same")]
    table += [(f"norm.{ours}", f"Transformer/encoder_norm/{name}", "same") for ours, name in NORM]
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        attention, dense = f"{theirs}/MultiHeadDotProductAttention_1", f"{theirs}/MlpBlock_3/Dense"
        parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
        for norm, name in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            table += [(f"{ours}.{norm}.{end}", f"{theirs}/{name}/{their}", "same") for end, their in NORM]
        table += [
            (f"{ours}.attention.qkv.weight", tuple(f"{part}/kernel" for part in parts), "qkv"),
            (f"{ours}.attention.qkv.bias", tuple(f"{part}/bias" for part in parts), "qkv bias"),
            (f"{ours}.attention.out.weight", f"{attention}/out/kernel", "out"),
            (f"{ours}.attention.out.bias", f"{attention}/out/bias", "same"),
            (f"{ours}.mlp.expand.weight", f"{dense}_0/kernel", "dense"),
            (f"{ours}.mlp.expand.bias", f"{dense}_0/bias", "same"),
            (f"{ours}.mlp.contract.weight", f"{dense}_1/kernel", "dense"),
            (f"{ours}.mlp.contract.bias", f"{dense}_1/bias", "same"),
        ]
    for ours, theirs in (("representation", "pre_logits"), ("head", "head")):
        table += [(f"{ours}.weight", f"{theirs}/kernel", "dense"), (f"{ours}.bias", f"{theirs}/bias", "same")]
    return table


def read(table, arrays, model):
    """The model with the arrays as its weights; every array is used, every tensor filled."""
    left = {name.removeprefix("params/"): torch.from_numpy(arrays[name]) for name in arrays}
    expected, state = model.state_dict(), {}
    for ours, theirs, turn in table:
        if ours in expected:
            state[ours] = TURNS[turn](*(left.pop(name) for name in ([theirs] if isinstance(theirs, str) else theirs)))
    assert not left, f"nothing reads {sorted(left)}"
    model.load_state_dict(state)
    return model.eval()
