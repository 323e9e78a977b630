"""Export a run's model as ONNX after training, for predictions without PyTorch."""

import os
from pathlib import Path

from vitkit.runtimes import Export, is_kept, kept_file, missing_packages, was_kept
from vitkit.system.console.messages import say, say_detail
from vitkit.system.environment import KEEP_ONNX_VARIABLE
from vitkit.system.functions.steps import step
from vitkit.system.machine import auto_is_float32, is_cpu


def keep(run_dir: Path) -> None:
    """Write RUN/model.onnx if predictions on this machine would use it: if `auto` is float32 on the CPU, the
    packages for it are installed, and VITKIT_KEEP_ONNX is not 0. Writes nothing for a model that cannot be
    exported or whose file fails its check, and does not replace a file of that name that a user has exported."""
    import vitkit  # exporting imports training

    path = kept_file(run_dir)
    is_used = is_cpu("auto") and auto_is_float32()
    wanted = os.environ.get(KEEP_ONNX_VARIABLE) or "1"
    if not is_used or wanted == "0" or missing_packages(Export()) or is_kept(path):
        return
    if path.exists() and not was_kept(path):
        say_detail(f"{path} stays as it is, so predict and serve use PyTorch")
        return
    if wanted != "1":  # no error: the run is complete
        say(f"{KEEP_ONNX_VARIABLE} is {wanted!r}, and only 0 means that no model is exported")
    say(f"exporting the model to {path}, for answers without PyTorch")
    try:
        vitkit.export(str(run_dir), output=path, quiet=True)
    except KeyboardInterrupt:  # the run is complete, and its result is still to be printed
        again = step("export", run_dir, output=path)
        say(f"interrupted, so {path} was not written; {again} writes it")
        return
    except Exception as error:  # the exporters' errors have no common class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        say_detail(f"no {path} is kept for answers without PyTorch: {reason}")
        return
    say(f"{path} is kept beside the model: with it, answers come sooner, without PyTorch")
