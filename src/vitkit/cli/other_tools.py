"""Names of commands and options in other tools, as tables of their vitkit counterparts. guesses.py and
translation.py replace words that have one certain meaning.

The names come from timm's train.py, Transformers' run_image_classification.py, ultralytics and
torchvision's references.
torchvision's references.
"""

COMMANDS = {
    "eval": "evaluate",
    "test": "evaluate",
    "val": "evaluate",
    "validate": "evaluate",
    "score": "evaluate",
    "accuracy": "evaluate",
    "measure": "evaluate",
    "benchmark": "bench",
    "speed": "bench",
    "latency": "bench",
    "classify": "predict",
    "infer": "predict",
    "inference": "predict",
    "optimize": "faster",
    "optimise": "faster",
    "speedup": "faster",
    "compress": "faster",
    "annotate": "label",
    "labels": "label",
    "fine-tune": "finetune",
    "fine_tune": "finetune",
    "tune": "finetune",
    "fit": "finetune",
    "learn": "finetune",
    "retrain": "finetune",
    "linear-probe": "probe",
    "embed": "features",
    "extract": "features",
    "attention": "inspect",
    "explain": "inspect",
    "visualize": "inspect",
    "visualise": "inspect",
    "heatmap": "inspect",
    "heatmaps": "inspect",
    "gradcam": "inspect",
    "grad-cam": "inspect",
    "saliency": "inspect",
    "gui": "app",
    "ui": "app",
    "web": "app",
    "webui": "app",
    "demo": "app",
    "info": "show",
    "summary": "show",
    "describe": "show",
    "diff": "compare",
    "upload": "push",
    "list": "models",
    "zoo": "models",
    "check": "doctor",
    "env": "doctor",
    "checks": "doctor",
    "stats": "data stats",
    "data check": "data stats",
    "data info": "data stats",
    "data summary": "data stats",
    "pack": "data pack",
    "review": "data review",
    "clean": "data review",
    "data clean": "data review",
    "tidy": "data review",
    "data tidy": "data review",
}
"""Names of commands in other tools, by vitkit's command."""

# {MODEL}, {DATA} and {RUN} are replaced by the words that follow the name, or stay if there are
# none. In an answer with both, {MODEL} is the word that is a model, and {DATA} the other words
COMMAND_ANSWERS = {
    "resume": "the same command again continues a run, in its --workdir if it was given one; "
    "recipe.json of a run says what it was begun with",
    "undo": "nothing is changed that would have to be undone: commands write new files, and originals "
    "stay where they are; only of a model that was taught, vitkit teach MODEL --undo takes the last "
    "change back",
    "delete": "vitkit deletes no files; vitkit data review DATA MODEL lists the images that training should "
    "leave out, and vitkit teach MODEL --remove NAME makes a model that was taught forget a class or "
    "photographs",
    "ls": "runs are the folders in runs/, and vitkit report RUN is a page about one; vitkit models "
    "lists the models that have names",
    "quantize": "int8 is a precision of exported files: vitkit export {MODEL} -o model.onnx --precision int8",
    "download": "published weights are downloaded when they are first used, as by vitkit show {MODEL}",
    "dedupe": "vitkit data stats {DATA} finds pictures that are there twice, and with --exclude FILE "
    "lists them to be left out",
    "split": "no folder has to be divided: vitkit finetune {DATA} and vitkit train hold out a fifth of "
    "every class as a test part, if there is none in folders train and test",
    "cluster": "vitkit features {MODEL} {DATA} -o features.parquet writes the features of images, by which "
    "scikit-learn or a database of vectors clusters them and finds similar ones",
    "docs": "vitkit COMMAND --help explains a command, and vitkit alone lists all of them",
    "dashboard": "vitkit report {RUN} writes a page about a run, and about several side by side",
    "explore": "vitkit inspect {MODEL} draws what a model has learned, and vitkit data stats {DATA} prints "
    "what a data set holds",
    "metrics": "vitkit evaluate {MODEL} {DATA} measures a model on images with labels, and vitkit report RUN "
    "writes a page about a run, with all that it measured",
    "prune": "no weights are pruned: vitkit faster {MODEL} finds the fastest way to compute a model, with "
    "tokens merged or in int8, that loses no more accuracy than you allow",
    "install": "vitkit doctor says what is there and what is missing, each with its pip install",
}
"""Messages for names of commands that vitkit does not have, with what to do instead."""

SAME_COMMAND = {
    "continue": "resume",
    "restart": "resume",
    "revert": "undo",
    "rollback": "undo",
    "rm": "delete",
    "remove": "delete",
    "erase": "delete",
    "purge": "delete",
    "wipe": "delete",
    "browse": "explore",
    "view": "explore",
    "look": "explore",
    "metric": "metrics",
    "search": "cluster",
    "similar": "cluster",
    "retrieve": "cluster",
    "index": "cluster",
    "documentation": "docs",
    "manual": "docs",
    "runs": "ls",
    "history": "ls",
    "status": "ls",
    "quantise": "quantize",
    "int8": "quantize",
    "pull": "download",
    "duplicates": "dedupe",
    "dedup": "dedupe",
    "deduplicate": "dedupe",
    "data duplicates": "dedupe",
    "data dedupe": "dedupe",
    "data dedup": "dedupe",
    "data split": "split",
    "tensorboard": "dashboard",
    "plot": "dashboard",
    "setup": "install",
}
"""Synonyms of the names in COMMAND_ANSWERS."""

# {} is replaced by the value, and {answers.csv} also gives an example of one; {size} by two
# numbers, or by one number twice; {gpu} by cuda:0 or cuda. The first entry of a line that the
# command has is used: an option, or a positional argument such as MODEL
_DATA = ("DATA {}", "--data.source {}", "IMAGE {}", "--data {}")
_MODEL = ("--model {}", "MODEL {}")
_LENGTH = ("--length {}epochs", "--epochs {}")
_RATE = ("--optim.lr {}",)
_BATCH = ("--batch {}",)
_WORKERS = ("--data.workers {}", "--workers {}")
_WHERE = ("--workdir {}", "--output {}", "DEST {}", "--to {}", "--into {}")
_BOTH_SIZES = "--model.image {size} --data.preprocessing.size {size} --data.preprocessing.resize 0"
_SIZE = ("--image {size}", _BOTH_SIZES)
_PATCH = ("--model.patch {size}",)
_BFLOAT16 = ("--precision bfloat16",)
_FASTEST = ("--precision auto",)

SETTINGS = {
    # Model and data
    "data": _DATA,
    "data-dir": _DATA,
    "data-path": _DATA,
    "dataset": _DATA,
    "dataset-name": _DATA,
    "dataset-dir": _DATA,
    "train-dir": _DATA,
    "root": _DATA,
    "source": _DATA,
    "folder": _DATA,
    "images": _DATA,
    "input": _DATA,
    "model": _MODEL,
    "arch": _MODEL,
    "model-name": _MODEL,
    "model-name-or-path": _MODEL,
    "weights": ("MODEL {}", "--init {}"),
    "checkpoint": ("MODEL {}", "--init {}"),
    "initial-checkpoint": ("MODEL {}", "--init {}"),
    "recipe": ("RECIPE {}",),
    # Length, learning rate and batch size
    "epochs": _LENGTH,
    "epoch": _LENGTH,
    "num-epochs": _LENGTH,
    "n-epochs": _LENGTH,
    "num-train-epochs": _LENGTH,
    "max-epochs": _LENGTH,
    "steps": ("--length {}",),
    "num-steps": ("--length {}",),
    "max-steps": ("--length {}",),
    "iterations": ("--length {}",),
    "lr": _RATE,
    "lr0": _RATE,
    "learning-rate": _RATE,
    "opt": ("--optim.name {}",),
    "optim": ("--optim.name {}",),
    "optimizer": ("--optim.name {}",),
    "wd": ("--optim.weight-decay {}",),
    "weight-decay": ("--optim.weight-decay {}",),
    "momentum": ("--optim.momentum {}",),
    "warmup": ("--optim.warmup {}",),
    "warmup-steps": ("--optim.warmup {}",),
    "warmup-epochs": ("--optim.warmup {}epochs",),
    "lr-warmup-epochs": ("--optim.warmup {}epochs",),
    "sched": ("--optim.schedule {}",),
    "scheduler": ("--optim.schedule {}",),
    "lr-scheduler": ("--optim.schedule {}",),
    "lr-scheduler-type": ("--optim.schedule {}",),
    "layer-decay": ("--optim.layer-decay {}",),
    "clip-grad": ("--optim.clip {}",),
    "clip-grad-norm": ("--optim.clip {}",),
    "max-grad-norm": ("--optim.clip {}",),
    "b": _BATCH,
    "bs": _BATCH,
    "batch": _BATCH,
    "batch-size": _BATCH,
    "per-device-train-batch-size": _BATCH,
    "per-device-eval-batch-size": _BATCH,
    "train-batch-size": _BATCH,
    "validation-batch-size": _BATCH,
    # Images and regularisation
    "image": _SIZE,
    "img-size": _SIZE,
    "image-size": _SIZE,
    "imgsz": _SIZE,
    "input-size": _SIZE,
    "resolution": _SIZE,
    "model.image": (_BOTH_SIZES,),
    "model.patch": _PATCH,
    "patch": _PATCH,
    "patch-size": _PATCH,
    "smoothing": ("--objective.label-smoothing {}",),
    "label-smoothing": ("--objective.label-smoothing {}",),
    "label-smoothing-factor": ("--objective.label-smoothing {}",),
    "mixup": ("--objective.mixup {}",),
    "cutmix": ("--objective.cutmix {}",),
    "drop": ("--model.dropout {}",),
    "dropout": ("--model.dropout {}",),
    "drop-path": ("--model.stochastic-depth {}",),
    "reprob": ("--data.augmentation.erase {}",),
    "random-erase": ("--data.augmentation.erase {}",),
    "model-ema-decay": ("--average {}",),
    "split-seed": ("--data.split-seed {}",),
    # Hardware
    "j": _WORKERS,
    "workers": _WORKERS,
    "num-workers": _WORKERS,
    "dataloader-num-workers": _WORKERS,
    "gpu": ("--device {gpu}",),
    "gpu-id": ("--device {gpu}",),
    "cuda": ("--device cuda",),
    "cpu": ("--device cpu",),
    "no-cuda": ("--device cpu",),
    "use-cpu": ("--device cpu",),
    "amp": _FASTEST,
    "half": _FASTEST,
    "fp16": _FASTEST,
    "mixed-precision": _FASTEST,
    "bf16": _BFLOAT16,
    "bfloat16": _BFLOAT16,
    "torchcompile": ("--compile",),
    "torch-compile": ("--compile",),
    "grad-checkpointing": ("--recompute",),
    "gradient-checkpointing": ("--recompute",),
    "full-determinism": ("--deterministic",),
    # Output
    "o": _WHERE,
    "out": _WHERE,
    "output": _WHERE,
    "outdir": _WHERE,
    "output-dir": _WHERE,
    "save-dir": _WHERE,
    "log-dir": _WHERE,
    "work-dir": _WHERE,
    "run-dir": _WHERE,
    "project": _WHERE,
    "tensorboard": ("--track tensorboard",),
    "log-wandb": ("--track wandb",),
    "wandb": ("--track wandb",),
    "mlflow": ("--track mlflow",),
    "report-to": ("--track {}",),
    "log-interval": ("--log-every {}",),
    "logging-steps": ("--log-every {}",),
    "save-steps": ("--save-every {}",),
    "eval-steps": ("--evaluate-every {}",),
    "save-total-limit": ("--keep {}",),
    "to": ("--into {}",),
    "predict csv": ("--to {answers.csv}",),
    "sort csv": ("--to {answers.csv}",),
    "watch csv": ("--to {answers.csv}",),
    "convert format": ("--to {}",),
    "export format": ("--to {}",),
    "export half": ("--precision float16",),
    "export fp16": ("--precision float16",),
    "export amp": ("--precision float16",),
    "export mixed-precision": ("--precision float16",),
    "export int8": ("--precision int8",),
    "export quantize": ("--precision int8",),
    "conf": ("--sure {}",),
    "topk": ("--top {}",),
    "top-k": ("--top {}",),
}
"""vitkit's settings for names of options in other tools, without dashes. A key with two words is a
command and an option of this command alone."""

TOO_MANY_WORDS = {
    "teach": "photographs to learn follow --add, each class as CLASS=PATH: vitkit teach {model} DIR --add "
    "{name}={rest}",
}
"""Messages for commands with too many positional arguments, where their meaning is likely. {model}
is the first argument, {name} the second, {rest} the third."""

WORDS = {"data.source": ("DATA {}",)}
"""Settings that are also positional arguments of a command: other settings depend on them, so they
must be given as these arguments."""

ANSWERS = {
    "conf": "every image gets its likeliest classes, each with its probability; vitkit sort --sure {} "
    "files photographs of which the model is less sure in a folder of their own",
    "config": "settings are options, such as --batch 64, or a recipe in Python: vitkit train FILE.py:FUNCTION; "
    "vitkit train RECIPE --help-all lists them, and {} is not read",
    "evaluate calibration": "the error of the probabilities is always measured, as calibration_error; "
    "--report report.html draws it, and --calibrate DIR writes the model with a temperature that corrects "
    "them",
    "sort dry-run": "vitkit predict {leading} says what each photograph is and files nothing; sort makes "
    "links or copies, and the photographs stay where they are",
    "data review dry-run": "without --yes, --apply only says which files it would move; leave out one "
    "of --dry-run and --yes",
    "finetune dry-run": "vitkit data stats DATA says what the images are, and vitkit finetune DATA "
    "--minutes 0.1 makes the first model alone, in seconds",
    "gpus": "one process computes on one GPU: torchrun --nproc-per-node {} -m vitkit {words}",
    "pretrained": "vitkit finetune and vitkit probe always begin with published weights, and "
    "vitkit train does with --init WEIGHTS; leave out --pretrained",
    "resume": "the same command again continues a run, in its --workdir if it was given one; leave "
    "out --resume",
    "num-classes": "the classes are those of the images; leave out --num-classes",
    "gradient-accumulation-steps": "--batch is what an update sees and --micro-batch what a forward "
    "pass sees; set both instead of --gradient-accumulation-steps",
    "validation-dir": "put the folders train and val into one folder, and give that as DATA",
    "val-split": "--data.split-seed draws the images that are held out if DATA has no test or val "
    "part, a fifth of every class; leave out --val-split",
}
"""Messages for options without a counterpart, or without one in a command to which SETTINGS does
not apply, with what to do instead. {leading} is replaced by the words before the options."""

SAME_ANSWER = {
    "num-gpus": "gpus",
    "n-gpu": "gpus",
    "nproc": "gpus",
    "nproc-per-node": "gpus",
    "world-size": "gpus",
    "devices": "gpus",
    "classes": "num-classes",
    "nb-classes": "num-classes",
    "num-labels": "num-classes",
    "grad-accum-steps": "gradient-accumulation-steps",
    "accumulate": "gradient-accumulation-steps",
    "val-dir": "validation-dir",
    "validation-split": "val-split",
    "train-val-split": "val-split",
    "resume-from-checkpoint": "resume",
    "cfg": "config",
    "config-file": "config",
    "yaml": "config",
    "confidence": "conf",
    "conf-thres": "conf",
    "min-confidence": "conf",
    "threshold": "conf",
}
"""Synonyms of the names in ANSWERS and SETTINGS."""

EXAMPLES = {
    "--optim.name": "adamw",
    "--optim.schedule": "cosine",
    "--track": "tensorboard",
    "--workdir": "DIR",
    "--output": "FILE",
    "--to": "FILE",
    "--into": "DIR",
    "--data": "DATA",
    "--data.source": "DATA",
    "--model": "MODEL",
    "--init": "WEIGHTS",
}
"""Example values of options that do not take a number, for the message that a value is missing."""


def _joined_names() -> dict[str, str]:
    """Names of settings with hyphens, by the same names without them: {"batchsize": "batch-size"}."""
    names = {}
    for name in (*SETTINGS, *ANSWERS, *SAME_ANSWER):
        if "-" in name and " " not in name:
            names[name.replace("-", "")] = name
    return names


JOINED = _joined_names()
