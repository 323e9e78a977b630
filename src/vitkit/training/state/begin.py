"""Where a run begins: decided here, and nowhere else."""

from pathlib import Path

import torch
from torch import nn

from vitkit.models import ModelConfig, create
from vitkit.objectives import Learner, blocks_of
from vitkit.system.processes.ranks import from_rank_0, shard, world
from vitkit.training.data import RunData, Say
from vitkit.training.recipe import Recipe, output_names
from vitkit.training.record.licensing import record_license
from vitkit.training.record.values import differences, to_json
from vitkit.training.state.checkpoints import checkpoints
from vitkit.training.state.state import State, trained
from vitkit.training.tune import apply_tuning
from vitkit.weights import Classifier, fitted_to, load_for

# Settings of a model that change neither its shapes nor its arithmetic in evaluation
NOT_ARCHITECTURE = ("dropout", "attention_dropout", "stochastic_depth", "head_bias")


def begin(recipe: Recipe, run_dir: Path, data: RunData, device: torch.device, say: Say) -> State:
    """The state that a run begins with. The first of these that applies wins:

    1. the run's own newest intact checkpoint,
    2. the weights that `init` names,
    3. initial weights, drawn by the seed.

    Raises ValueError for weights of another architecture, for a model that the objective cannot
    train, and if every checkpoint is damaged.
    """
    resumes = from_rank_0(lambda: bool(checkpoints(run_dir)))

    # The model, with its own initial weights or those that `init` names
    model = create(recipe.model, device, recipe.seed)
    published = None
    if recipe.init and not resumes:
        published = take_weights(model, recipe.init, output_names(recipe, data.facts), say)
        from_rank_0(lambda: record_license(run_dir, published.license))
    apply_tuning(model, recipe.tune, recipe.seed)

    # The learner: the model, and what its objective adds to it
    with torch.random.fork_rng(devices=[]):  # PyTorch's global generator stays as it is
        torch.manual_seed(recipe.seed)
        learner = recipe.objective.learner(model, recipe.data.preprocessing).to(device)
    if published is not None:
        take_pretraining(learner, published, recipe, say)
    learner.prepare(data.train)
    for module in learner.modules():
        if hasattr(module, "recompute"):
            module.recompute = recipe.recompute
    learner = compile_and_shard(recipe, learner)

    # The optimiser, and the Polyak average if there is one: of the shards, so they come last
    optimizer = recipe.optim.build(learner)
    average = None
    if recipe.average:
        average = {name: weight.clone() for name, weight in trained(learner).items()}

    # All of it as a checkpoint has it, if the run continues
    record = {"recipe": to_json(recipe), "data": data.record}
    state = State(learner, optimizer, average, record)
    if resumes:
        restore(run_dir, state, say)
    return state


def take_weights(model: nn.Module, source: str, labels: tuple[str, ...], say: Say) -> Classifier:
    """Fill a model with published or trained weights, but for its head, which stays new; returns
    them. Their licence is the trained model's too.

    Raises ValueError if the weights are of another architecture, naming every setting that differs.
    """
    # The weights at this model's image size: position embeddings are resampled, in the recipe's way.
    # What their file does not say, the recipe's model does
    published, left_out = load_for(source, model.config)
    fitted, notes = fitted_to(published, model.config, labels)

    # They must be of the same architecture
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
    for note in (*left_out, *notes):
        say(f"{source}: {note}")
    return fitted


def take_pretraining(learner: Learner, published: Classifier, recipe: Recipe, say: Say) -> None:
    """Fill what the objective adds to the model with what an earlier pre-training added to it, if
    that is of the same shape; if it is not, say why it is made anew."""
    theirs = published.pretraining
    if not theirs or not learner.travels:
        return
    state = learner.state_dict()
    parts = {name.split(".")[0] for name in theirs}
    ours = {name: state[name] for name in state if name.split(".")[0] in parts}
    reason = ""
    heads = published.origin.get("objective", {}).get("heads")
    if heads and heads != getattr(recipe.objective, "heads", heads):
        reason = f"it has {heads} attention heads; give --objective.heads {heads}"
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in ours or name not in theirs:
            reason = reason or f"only one of the two has {name}"
        elif theirs[name].shape != ours[name].shape:
            shapes = f"{tuple(theirs[name].shape)} there, {tuple(ours[name].shape)} here"
            reason = reason or f"{name} is {shapes}"
    if reason:
        say(f"{recipe.init}: what its pre-training added is not taken, but made anew: {reason}")
        return
    learner.load_state_dict(state | theirs)
    say(f"{recipe.init}: taken with it, what its pre-training added: {', '.join(sorted(parts))}")


def compile_and_shard(recipe: Recipe, learner: nn.Module) -> nn.Module:
    """The learner, compiled if the recipe asks for it, and sharded block by block if there are
    several ranks."""
    blocks = blocks_of(learner)
    if recipe.compile:
        # The whole model can be compiled only if its forward pass is called as one. Several ranks
        # gather weights between the blocks; an objective that needs no head calls parts of it.
        compiled = blocks
        if world().world_size == 1 and recipe.model.classes:
            compiled = [learner.model]
        for module in compiled:
            module.compile()
    return shard(learner, blocks, recipe.precision)


def restore(run_dir: Path, state: State, say: Say) -> None:
    """Load the run's newest intact checkpoint, saying which damaged ones are passed over. Raises
    ValueError if all are damaged."""
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
