"""Where a run begins: decided here, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from vitkit.models import ModelConfig, create
from vitkit.system.ranks import from_rank_0, shard, world
from vitkit.train.checkpoints import checkpoints
from vitkit.train.data import RunData
from vitkit.train.recipe import Recipe, output_names
from vitkit.train.record import differences, to_json
from vitkit.train.state import State, trained
from vitkit.train.tune import apply_tuning
from vitkit.weights import adopt, load

Say = Callable[[str], None]
NOT_ARCHITECTURE = ("dropout", "attention_dropout", "stochastic_depth", "head_bias")


def begin(recipe: Recipe, run_dir: Path, data: RunData, device: torch.device, say: Say) -> State:
    """The state that a run begins with. The first line that applies wins:

    its own newest intact checkpoint; the weights that `init` names; initial weights, by the seed.
    Raises ValueError for weights of another architecture, for a model that the objective cannot
    train, and where every checkpoint is damaged.
    """
    continues = from_rank_0(lambda: bool(checkpoints(run_dir)))

    # The model
    model = create(recipe.model, device, recipe.seed)
    if recipe.init and not continues:
        take_weights(model, recipe.init, output_names(recipe, data.facts), say)
    apply_tuning(model, recipe.tune, recipe.seed)

    # What is trained: the model, with what its objective adds to it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        learner = recipe.objective.learner(model, recipe.data.preprocessing).to(device)
    learner.prepare(data.train)
    for part in learner.modules():
        if hasattr(part, "recompute"):
            part.recompute = recipe.recompute
    learner = compile_and_shard(recipe, learner)

    # What changes it
    optimizer = recipe.optim.build(learner)
    average = None
    if recipe.average:
        average = {name: weight.clone() for name, weight in trained(learner).items()}

    state = State(learner, optimizer, average)
    if continues:
        restore(run_dir, state, say)
    return state


def take_weights(model: nn.Module, source: str, labels: tuple[str, ...], say: Say) -> None:
    """Fill a model with published or trained weights, fitted to its image size. The head stays as
    it is: new.

    Raises ValueError if the weights are of another architecture, naming every setting that differs.
    """
    published = load(source, quiet=True)
    size = model.config.image
    fitted, notes = adopt(published, labels=labels, image=size, new_head=True)

    # Only what decides the shape and the arithmetic must be the same
    theirs = to_json(fitted.model.config, ModelConfig)
    ours = to_json(model.config, ModelConfig)
    for name in NOT_ARCHITECTURE:
        theirs.pop(name, None)
        ours.pop(name, None)
    changed = differences(theirs, ours)
    if changed:
        raise ValueError(f"{source} holds another model than the recipe's ({'; '.join(changed)})")

    weights = model.state_dict()
    for name, tensor in fitted.model.state_dict().items():
        if not name.startswith("head."):
            weights[name] = tensor
    model.load_state_dict(weights)
    for note in notes:
        say(f"{source}: {note}")


def compile_and_shard(recipe: Recipe, learner: nn.Module) -> nn.Module:
    """The learner, compiled if the recipe asks for it, and shared out among the ranks by blocks, if
    there are several.

    The whole model is compiled if it is called as one. It is not where weights are gathered between
    its blocks, nor where an objective reads the states of its patches and wants no head: then each
    block is compiled on its own.
    """
    blocks = [block for part in learner.modules() for block in getattr(part, "blocks", ())]
    if recipe.compile:
        called_as_one = world().world_size == 1 and recipe.model.classes
        for module in [learner.model] if called_as_one else blocks:
            module.compile()
    return shard(learner, blocks, recipe.precision)


def restore(run_dir: Path, state: State, say: Say) -> None:
    """Continue at the run's newest intact checkpoint; a damaged one is said. Raises ValueError if
    all are damaged."""
    for checkpoint in from_rank_0(lambda: checkpoints(run_dir)):
        try:
            state.load(checkpoint)
        except ValueError as error:
            say(f"{error}; trying the one before it")
        else:
            return
    raise ValueError(
        f"every checkpoint in {run_dir / 'checkpoints'} is damaged; remove {run_dir} to start over"
    )
