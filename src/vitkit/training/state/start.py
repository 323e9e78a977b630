"""The initial state of a run: from a checkpoint, from given weights, or from scratch."""

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

LICENSE = "license.json"  # in the run's directory: the licence of its initial weights
# Settings of a model that change neither its shapes nor its arithmetic in evaluation
NOT_ARCHITECTURE = ("dropout", "attention_dropout", "stochastic_depth", "head_bias")


def begin(recipe: Recipe, run_dir: Path, data: RunData, device: torch.device, say: Say) -> State:
    """The initial state of a run. The first of these that applies wins:

    1. the run's own newest intact checkpoint,
    2. the weights that `init` names,
    3. random initial weights from the seed.

    Raises VitkitError for weights of another architecture, for a model that the objective cannot
    train, and if every checkpoint is damaged.
    """
    resumes = from_rank_0(lambda: bool(checkpoints(run_dir)))

    # The model, with its own initial weights or those that `init` names
    model = create(recipe.model, device, recipe.seed)
    published = None
    if recipe.init and not resumes:
        labels = output_names(recipe, data.facts)
        published = take_weights(model, recipe.init, labels, say, recipe.init_head)
        license = None
        if published.license is not None:
            license = asdict(published.license)
        from_rank_0(lambda: write_sealed(run_dir / LICENSE, {"license": license}))
    apply_tuning(model, recipe.tune, recipe.seed)

    # The learner: the model, and the modules that its objective adds
    with torch.random.fork_rng(devices=[]):  # restores the state of PyTorch's global generator
        torch.default_generator.manual_seed(recipe.seed)
        learner = recipe.objective.learner(model, recipe.data.preprocessing).to(device)
    if published is not None:
        take_pretraining(learner, published, recipe, say)
    learner.prepare(data.train)
    set_residual(learner, recipe)
    for module in learner.modules():
        if isinstance(module, Model):
            module.recompute = recipe.recompute

    # Compile with the recipe's `compile`: the whole model if its forward pass is called as a whole, else its
    # blocks. Several ranks gather weights between the blocks; an objective without a head calls parts of the
    # model
    blocks = blocks_of(learner)
    if recipe.compile:
        compiled = blocks
        if world().world_size == 1 and recipe.model.classes:
            compiled = [learner.model]
        for module in compiled:
            # A graph with dynamic shapes fails with an InductorError (torch 2.11)
            module.compile(dynamic=False)
    learner = shard(learner, blocks, recipe.arithmetic, recipe.shard_group)

    # The optimiser and the Polyak average are those of the shards, so they come after sharding
    optimizer = recipe.optim.build(learner)
    average = None
    if recipe.average:
        average = {name: weight.clone() for name, weight in trained(learner).items()}

    # If the run continues, load its checkpoint
    record = {"recipe": to_json(recipe), "data": data.record}
    state = State(learner, optimizer, average, record)
    if resumes:
        restore(run_dir, state, say)
    return state


def take_weights(
    model: Model, source: str, labels: tuple[str, ...], say: Say, with_head: bool = False
) -> Classifier:
    """Load published or trained weights into a model, except for its head, which stays new unless `with_head`;
    returns the published model. Its licence applies to the trained model too.

    Raises VitkitError if the weights are of another architecture, with every setting that differs, and if their
    head is needed and has other classes.
    """
    # Load the weights at this model's image size, resampling position embeddings as the recipe says. Settings
    # that are not in their file are taken from the recipe's model
    published, left_out = load_for(source, model.config)
    if with_head and published.labels != labels:
        raise BadSettings(
            f"the head of {source} has other classes than the images, so a run cannot begin with it: leave out "
            "`init_head`"
        )
    fitted = published
    notes: list[str] = []
    if not with_head:
        fitted, notes = fitted_to(published, model.config, labels)

    # The architectures must be equal
    theirs = to_json(fitted.model.config, ModelConfig)
    ours = to_json(model.config, ModelConfig)
    for name in NOT_ARCHITECTURE:
        theirs.pop(name, None)
        ours.pop(name, None)
    changed = differences(theirs, ours)
    if changed:
        raise BadSettings(
            f"{source} has another architecture than the recipe's model ({'; '.join(changed)})"
        )

    weights = model.state_dict()
    for name, tensor in fitted.model.state_dict().items():
        if with_head or not name.startswith("head."):
            weights[name] = tensor
    model.load_state_dict(weights)
    for note in (*left_out, *notes):
        say(f"{source}: {note}")
    return fitted


def take_pretraining(learner: Learner, published: Classifier, recipe: Recipe, say: Say) -> None:
    """Load the weights that an earlier pre-training added to its model into the modules that the objective adds,
    if names and shapes match; otherwise print why these are initialised from scratch."""
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
        say(
            f"{recipe.init}: the modules of its pre-training do not fit, so they are new: {reasons[0]}"
        )
        return
    learner.load_state_dict(state | theirs)
    say(
        f"{recipe.init}: the modules of its pre-training are loaded too: {', '.join(sorted(parts))}"
    )


def restore(run_dir: Path, state: State, say: Say) -> None:
    """Load the run's newest intact checkpoint, and print which damaged ones are skipped. Raises VitkitError if
    all are damaged."""
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
    """The licence of a run's initial weights, which applies to the trained model too. None if the model is
    trained from scratch, or if the licence is unknown.

    It is read from the run's directory, because the initial weights may be gone when the run continues.
    """
    if not recipe.init:
        return None
    try:
        recorded = read_sealed(run_dir / LICENSE)["license"]
    except (OSError, ValueError, KeyError):  # missing or damaged: read it from the weights
        try:
            return load(recipe.init, quiet=True).license
        except VitkitError as error:
            say(
                f"the licence of {recipe.init} cannot be read any more ({error}), so the model is saved "
                "without it"
            )
            return None
    if recorded is None:
        return None
    return License(**recorded)
