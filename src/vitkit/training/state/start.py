"""Where a run begins: decided here, and nowhere else."""

from dataclasses import asdict
from pathlib import Path

import torch

from vitkit.models import Model, ModelConfig, create
from vitkit.objectives import Learner
from vitkit.objectives.objective import blocks_of
from vitkit.recipes import Recipe, Say
from vitkit.recipes.settings import output_names
from vitkit.system.errors import BadRun, BadSettings, VitkitError
from vitkit.system.processes.ranks import from_rank_0, shard, world
from vitkit.training.data import RunData
from vitkit.training.optim import apply_tuning, set_residual
from vitkit.training.record.values import differences, to_json
from vitkit.training.state.checkpoints import checkpoints, read_sealed, write_sealed
from vitkit.training.state.state import State, trained
from vitkit.weights import Classifier, License, fitted_to, load, load_for

LICENSE = "license.json"  # in the run's directory: that of the weights it began with
# Settings of a model that change neither its shapes nor its arithmetic in evaluation
NOT_ARCHITECTURE = ("dropout", "attention_dropout", "stochastic_depth", "head_bias")


def begin(recipe: Recipe, run_dir: Path, data: RunData, device: torch.device, say: Say) -> State:
    """The state that a run begins with. The first of these that applies wins:

    1. the run's own newest intact checkpoint,
    2. the weights that `init` names,
    3. initial weights, drawn by the seed.

    Raises VitkitError for weights of another architecture, for a model that the objective cannot
    train, and if every checkpoint is damaged.
    """
    resumes = from_rank_0(lambda: bool(checkpoints(run_dir)))

    # The model, with its own initial weights or those that `init` names
    model = create(recipe.model, device, recipe.seed)
    published = None
    if recipe.init and not resumes:
        published = take_weights(model, recipe.init, output_names(recipe, data.facts), say)
        license = None
        if published.license is not None:
            license = asdict(published.license)
        from_rank_0(lambda: write_sealed(run_dir / LICENSE, {"license": license}))
    apply_tuning(model, recipe.tune, recipe.seed)

    # The learner: the model, and what its objective adds to it
    with torch.random.fork_rng(devices=[]):  # PyTorch's global generator stays as it is
        torch.default_generator.manual_seed(recipe.seed)
        learner = recipe.objective.learner(model, recipe.data.preprocessing).to(device)
    if published is not None:
        take_pretraining(learner, published, recipe, say)
    learner.prepare(data.train)
    set_residual(learner, recipe)
    for module in learner.modules():
        if isinstance(module, Model):
            module.recompute = recipe.recompute

    # Compiled, if the recipe asks for it: the whole model only if its forward pass is called as
    # one. Several ranks gather weights between the blocks; an objective that needs no head calls
    # parts of it
    blocks = blocks_of(learner)
    if recipe.compile:
        compiled = blocks
        if world().world_size == 1 and recipe.model.classes:
            compiled = [learner.model]
        for module in compiled:
            # A graph for any size ends in an InductorError (torch 2.11)
            module.compile(dynamic=False)
    learner = shard(learner, blocks, recipe.arithmetic, recipe.shard_group)

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


def take_weights(model: Model, source: str, labels: tuple[str, ...], say: Say) -> Classifier:
    """Fill a model with published or trained weights, but for its head, which stays new; returns
    them. Their licence is the trained model's too.

    Raises VitkitError if the weights are of another architecture, naming every setting that differs.
    """
    # The weights at this model's image size: position embeddings are resampled, in the recipe's
    # way. What their file does not say, the recipe's model does
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
        raise BadSettings(f"{source} holds another model than the recipe's ({'; '.join(changed)})")

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
    the shapes agree; otherwise log why it is initialised from scratch."""
    theirs = published.pretraining
    if not theirs or not learner.travels:
        return
    state = learner.state_dict()
    parts = {name.split(".")[0] for name in theirs}
    ours = {name: state[name] for name in state if name.split(".")[0] in parts}
    reasons = []
    heads = published.origin.get("objective", {}).get("heads")
    if heads and heads != getattr(recipe.objective, "heads", heads):
        reasons.append(f"it has {heads} attention heads; give `objective.heads={heads}`")
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in ours or name not in theirs:
            reasons.append(f"only one of the two has {name}")
        elif theirs[name].shape != ours[name].shape:
            shapes = f"{tuple(theirs[name].shape)} there, {tuple(ours[name].shape)} here"
            reasons.append(f"{name} is {shapes}")
    if reasons:
        say(f"{recipe.init}: what its pre-training added is not taken, but made anew: {reasons[0]}")
        return
    learner.load_state_dict(state | theirs)
    say(f"{recipe.init}: taken with it, what its pre-training added: {', '.join(sorted(parts))}")


def restore(run_dir: Path, state: State, say: Say) -> None:
    """Load the run's newest intact checkpoint, saying which damaged ones are passed over. Raises
    VitkitError if all are damaged."""
    for checkpoint in from_rank_0(lambda: checkpoints(run_dir)):
        try:
            state.load(checkpoint)
        except VitkitError as error:
            say(f"{error}; trying the one before it")
        else:
            return
    raise BadRun(
        f"every checkpoint in {run_dir / 'checkpoints'} is damaged; remove {run_dir} to start over"
    )


def license_of(recipe: Recipe, run_dir: Path, say: Say) -> License | None:
    """The licence of the weights that a run began with, which the trained model is under too. None
    if the model was trained from scratch, or if the licence is not known.

    It is noted in the run, which may be continued where those weights are no more.
    """
    if not recipe.init:
        return None
    try:
        noted = read_sealed(run_dir / LICENSE)["license"]
    except (OSError, ValueError, KeyError):  # lost or damaged: the weights themselves say it
        try:
            return load(recipe.init, quiet=True).license
        except VitkitError as error:
            say(
                f"the licence of {recipe.init} is not known any more ({error}); it is not in the "
                "model"
            )
            return None
    if noted is None:
        return None
    return License(**noted)
