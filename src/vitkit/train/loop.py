"""The loop: one, whatever the objective."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from vitkit.data import Batch, default_workers, train_batches
from vitkit.models import ModelConfig, create
from vitkit.objectives.objective import Objective
from vitkit.system.machine import autocast, slow
from vitkit.system.ranks import (
    any_rank,
    from_every_rank,
    from_rank_0,
    full_tensor,
    local_tensor,
    on_rank_0,
    process_group,
    shard,
    sum_over_ranks,
    world,
)
from vitkit.system.span import due
from vitkit.system.watchdog import watchdog
from vitkit.train.checkpoints import checkpoints, on_schedule
from vitkit.train.data import RunData, open_data
from vitkit.train.evaluation import evaluate
from vitkit.train.log import Log, last_metrics
from vitkit.train.optim import Optim
from vitkit.train.recipe import Facts, Recipe, output_names, resolve
from vitkit.train.record import differences, to_json
from vitkit.train.run import claim, locked
from vitkit.train.state import State, start, trained
from vitkit.train.stop import Interrupted, Stop, stoppable
from vitkit.train.tune import choose, merged
from vitkit.weights import Classifier, adopt, load, save

FREE = (
    "dropout",
    "attention_dropout",
    "stochastic_depth",
    "head_bias",
)  # settings that are no part of an architecture
BAD_STEPS = 3  # non-finite ones in a row, before the run goes back to the last good checkpoint


def train(
    recipe: Recipe, workdir: Path | str, device: str = "auto", console: Console | None = None
) -> Classifier:
    """Run a recipe in a directory, or continue the run that is there; returns the finished model, saved in `model/`.

    Killed at any moment and called again, it ends with the weights of a run that was never disturbed: bit for bit on a
    CPU. Raises ValueError for what cannot run, Interrupted after SIGTERM or Ctrl-C, OSError when the disk is full_tensor,
    FloatingPointError when the loss stays non-finite.
    """
    workdir = Path(workdir)
    with process_group(device) as place, locked(workdir):
        return _train(
            recipe, workdir, place, (console or Console()) if on_rank_0() else Console(quiet=True)
        )


def _train(recipe: Recipe, workdir: Path, place: torch.device, console: Console) -> Classifier:
    """One rank's part of it."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    data = open_data(recipe.data, recipe.evals, workdir, say)
    recipe = resolve(recipe, data.facts)
    if recipe.batch % world().ranks:
        raise ValueError(
            f"a batch of {recipe.batch} cannot be shared equally by {world().ranks} processes; choose --batch "
            f"{-(-recipe.batch // world().ranks) * world().ranks}, or another number of them"
        )
    claim(workdir, recipe, data)
    labels = output_names(recipe, data.facts)
    model = create(recipe.model, place, recipe.seed)
    if not from_rank_0(lambda: checkpoints(workdir)):
        take_weights(model, recipe.init, labels, say)
    choose(model, recipe.tune, recipe.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        learner = recipe.objective.learner(model, recipe.data.preprocessing).to(place)
        learner.prepare(data.train)
    for encoder in (part for part in learner.modules() if hasattr(part, "recompute")):
        encoder.recompute = recipe.recompute
    learner = sharded(recipe, learner)
    average = (
        {name: value.clone() for name, value in trained(learner).items()}
        if recipe.average
        else None
    )
    state = State(learner, recipe.optim.build(learner), average)
    start(workdir, state, say)
    if state.step == recipe.length.n and from_rank_0(
        lambda: (workdir / "model" / "config.json").exists()
    ):
        say(f"this run is finished after {state.step:,} steps; another --workdir starts a new one")
        return load(workdir, quiet=True)
    log = Log(workdir, state.step, recipe.length.n, recipe.tensorboard, console)
    log.say(_opening(recipe, data, state, place))
    if not data.held_out:
        log.say("nothing is held out to evaluate on")
    elif not recipe.evals:
        log.say("nothing measures this run: its images have no classes to judge by")
    if slow(place, recipe.precision):
        log.say(
            "this CPU has no bfloat16 instructions: --precision float32 is many times faster here"
        )
    with stoppable() as stop:
        try:
            _steps(recipe, workdir, state, data, log, stop)
            state.settle()
        except Interrupted:
            if state.bad_in_row == 0:  # else the last checkpoint is the place to continue from
                state.save(workdir, recipe.keep, scheduled=False)
            state.settle()
            log.say(
                f"interrupted at step {state.step:,}, saved at {max(state.kept, 0):,}; the same command continues"
            )
            raise
        except FloatingPointError:  # on every rank
            state.settle()
            raise
        finally:
            log.close()
            watchdog.pause()
    with state.averaged(), state.learner.deployed():
        weights = {
            name: full_tensor(tensor).to("cpu", copy=True)
            for name, tensor in model.state_dict().items()
        }
    origin = {
        "recipe": recipe.name,
        "data": recipe.data.source,
        "seed": recipe.seed,
        "steps": state.step,
    }
    origin["objective"] = to_json(recipe.objective, Objective)
    origin["metrics"] = {name: metric.text() for name, metric in last_metrics(workdir).items()}
    origin |= {"init": recipe.init} if recipe.init else {}
    origin |= {"split_seed": recipe.data.split_seed}

    def finish() -> None:
        finished = create(recipe.model, seed=0)
        choose(finished, recipe.tune)
        finished.load_state_dict(weights)
        save(
            Classifier(
                merged(finished),
                recipe.data.preprocessing,
                labels,
                recipe.objective.activation(),
                origin,
            ),
            workdir / "model",
        )

    from_rank_0(finish)
    return load(workdir, quiet=True)


def sharded(recipe: Recipe, learner: nn.Module) -> nn.Module:
    """What is trained, compiled where the recipe asks for it, and shared out among the ranks by blocks, where there are
    several. Then each block is compiled on its own, for its weights are gathered between them; and where no label is wanted,
    for such objectives read the model's states, not its answer."""
    blocks = [block for part in learner.modules() for block in getattr(part, "blocks", ())]
    if recipe.compile:
        for module in [learner.model] if world().ranks == 1 and recipe.model.classes else blocks:
            module.compile()
    return shard(learner, blocks, recipe.precision)


def take_weights(
    model: nn.Module, source: str, labels: tuple[str, ...], say: Callable[[str], None]
) -> None:
    """Fill a model with published or trained weights, fitted to its classes and image size; nothing where there are none.

    Raises ValueError where the weights are of another architecture, naming every setting that differs.
    """
    if not source:
        return
    found, said = adopt(
        load(source, quiet=True), labels=labels, image=model.config.image, new_head=True
    )
    configs = [to_json(each.config, ModelConfig) for each in (found.model, model)]
    other = differences(*configs)
    if other := [text for text in other if text.partition(":")[0] not in FREE]:
        raise ValueError(f"{source} holds another model than the recipe's ({'; '.join(other)})")
    taken = {
        name: t for name, t in found.model.state_dict().items() if not name.startswith("head.")
    }
    model.load_state_dict(
        model.state_dict() | taken
    )  # the head stays new, and its bias as the recipe has it
    for sentence in said:
        say(f"{source}: {sentence}")


def _steps(
    recipe: Recipe, workdir: Path, state: State, data: RunData, log: Log, stop: Stop
) -> None:
    """From the state's step to the last one, with evaluations and checkpoints on the way."""
    total, place = recipe.length.n, next(state.learner.parameters()).device
    workers = default_workers(data.train) if recipe.data.workers < 0 else recipe.data.workers
    images = recipe.data
    batches = train_batches(
        data.train,
        images.augmentation,
        images.preprocessing,
        recipe.batch,
        recipe.seed,
        state.step,
        workers,
        world(),
        place,
    )
    if state.step == 0 and not from_rank_0(lambda: checkpoints(workdir)):
        state.save(
            workdir, recipe.keep
        )  # a disk that cannot hold a checkpoint says so before the first step
    try:
        while True:
            evaluate(recipe, workdir, state, data, log, stop)
            if state.step == total:
                return
            began = time.perf_counter()
            batch = next(batches)
            log.meter.waited += time.perf_counter() - began
            stop.raise_if_asked()
            lr, decay = recipe.optim.rate(state.step, total), recipe.optim.decay(state.step, total)
            for group in state.optimizer.param_groups:
                group["lr"], group["weight_decay"] = lr * group["scale"], decay * group["decays"]
            state.learner.before(state.step, total)
            loss, norm = gradient(recipe, state, batch, place)
            state.step += 1
            if torch.isfinite(loss + norm):
                state.optimizer.step()
                state.learner.updated(state.step, total)
                state.bad_in_row = 0
                if state.average is not None:
                    state.update_average(recipe.average)
            else:
                _skip(recipe, workdir, state, batch, log, (loss, norm))
            state.optimizer.zero_grad()
            log.at(state.step)
            if due(state.step, recipe.log_every, total):
                log.training(state.step, recipe.batch, loss.item(), norm.item(), lr)
            if due(state.step, recipe.save_every.n, total) and state.bad_in_row == 0:
                began = time.perf_counter()
                state.save(workdir, recipe.keep)
                log.meter.paused += time.perf_counter() - began
    finally:
        batches.close()


def gradient(
    recipe: Recipe, state: State, batch: Batch, place: torch.device
) -> tuple[Tensor, Tensor]:
    """Loss of a whole batch, of which `batch` is this rank's share, and the norm of its gradient before clipping; the
    clipped gradient is left on the parameters.

    Micro-batches are weighted by their share of the whole batch, so that they add up, over all ranks, to its gradient.
    What the objective draws is a function of (seed, step, example). Dropout is one of (seed, step, first row of the
    micro-batch): the same on any number of ranks that can keep the recipe's micro-batches.
    """
    learner, (rank, ranks) = state.learner.train(), world()
    count = len(batch.images)
    images = batch.images.to(place, non_blocking=True)
    targets = batch.targets.to(place, non_blocking=True)
    keys = keys_of(recipe.seed, state.step, count * ranks)[count * rank :][:count].to(
        place, non_blocking=True
    )
    loss, row = torch.zeros((), device=place), count * rank
    for part in zip(*(of.split(recipe.micro_batch) for of in (images, targets, keys)), strict=True):
        torch.manual_seed(
            recipe.seed * 1_000_003 + state.step + row * 0x9E3779B1
        )  # far from those of other steps
        row += len(part[0])
        with autocast(place, recipe.precision):
            share = learner(recipe.data.preprocessing.normalise(part[0]), *part[1:]) * (
                len(part[0]) / (count * ranks)
            )
        share.backward()
        loss += share.detach()
    return sum_over_ranks(loss), clipped(learner, recipe.optim)


@torch.no_grad()
def clipped(learner: nn.Module, optim: Optim) -> Tensor:
    """The norm of the whole gradient, () float32, which is then clipped as `optim` says.

    Squares are summed in float64, where the device has it: float32 sums of a large layer are off by up to 1e-4 on a CPU, and
    by something else on every number of ranks.
    """
    gradients = [local_tensor(p.grad) for p in learner.parameters() if p.grad is not None]
    kind = torch.float32 if gradients[0].device.type == "mps" else torch.float64
    squares = sum_over_ranks(
        torch.stack(torch._foreach_norm(gradients, 2, kind)).square()
    )  # (parameters,)
    norm = squares.sum().sqrt().float()
    if optim.clip:
        shares = (optim.clip / (squares.sqrt().float() if optim.clip_each else norm)).clamp(max=1)
        torch._foreach_mul_(gradients, list(shares) if optim.clip_each else shares)
    return norm


def keys_of(seed: int, step: int, examples: int) -> Tensor:
    """(B,) int64: what an objective's randomness starts from, for every example of the batch that follows `step` steps."""
    return torch.from_numpy(
        np.random.Generator(np.random.PCG64([seed, step])).integers(0, 1 << 62, examples)
    )


def _skip(
    recipe: Recipe,
    workdir: Path,
    state: State,
    batch: Batch,
    log: Log,
    found: tuple[Tensor, Tensor],
) -> None:
    """Count a step whose loss or gradient is not finite, keep its batch for replay, and go back if it goes on.

    Going back takes the weights of the last good checkpoint and goes on with the batches that come next: the same batches
    would lead to the same place. Raises FloatingPointError when that has been tried.
    """
    state.skipped += 1
    state.bad_in_row += 1
    loss, norm = (value.item() for value in found)
    indices = [one for share in from_every_rank(batch.indices.tolist()) for one in share]
    log("skipped", state.step, loss=loss, norm=norm, indices=indices)
    log.say(
        f"step {state.step}: loss {loss}, gradient norm {norm}: skipped; its batch is listed in {log.path}"
    )
    if state.bad_in_row < BAD_STEPS:
        return
    advice = f"lower --optim.lr (it is {recipe.optim.lr:g}), lengthen --optim.warmup, or use --precision float32"
    if state.rollbacks:
        raise FloatingPointError(
            f"{BAD_STEPS} steps in a row were not finite at step {state.step}, after going back once already; {advice}"
        )
    counts = (state.step, state.skipped)
    state.settle()
    for checkpoint in from_rank_0(
        lambda: [path for path in checkpoints(workdir) if on_schedule(path)]
    ):
        try:
            state.load(checkpoint)
        except ValueError as error:
            log.say(f"{error}; trying the one before it")
            continue
        if not any_rank(
            not all(local_tensor(t).isfinite().all() for t in state.tensors().values())
        ):
            break
    else:
        raise FloatingPointError(
            f"{BAD_STEPS} steps in a row were not finite and no checkpoint is; {advice}"
        )
    log.say(
        f"{BAD_STEPS} steps in a row were not finite: back to the weights of step {state.step}, on with new batches"
    )
    state.step, state.skipped = counts
    state.bad_in_row, state.rollbacks = 0, 1
    log("rollback", state.step, checkpoint=checkpoint.name)
    state.save(workdir, recipe.keep)


def _targets(facts: Facts) -> str:
    """What the images are labelled with, in two words."""
    if facts.target == "number":
        return "a number each"
    if facts.target == "none":
        return "no labels"
    return f"{len(facts.labels):,} classes"


def _opening(recipe: Recipe, data: RunData, state: State, place: torch.device) -> str:
    """What is about to run, in the numbers that people get wrong: the effective batch, rate and length."""
    count = sum(p.numel() for p in state.learner.parameters())
    held = ", ".join(f"{len(part):,} {name}" for name, part in data.held_out.items())
    height, width = recipe.model.image
    others = world().ranks - 1
    return (
        f"{f'from {recipe.init}: ' if recipe.init else ''}"
        f"{count:,} parameters on {place}{f' and {others} more' if others else ''}, {recipe.precision}; "
        f"{len(data.train):,} training images"
        f"{f', {held}' if held else ''}, {_targets(data.facts)}, {height} x {width}; "
        f"{recipe.length} of {recipe.batch} ({recipe.optim.name}, lr {recipe.optim.lr:g}, {recipe.optim.schedule})"
        f"{f'; continuing at step {state.step:,}' if state.step else ''}"
    )
