"""What holds in all packages: layers, settings that are read, light imports, documented public names."""

import ast
import collections
import functools
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from architecture import (
    LAYERS,
    ROOT,
    drawn,
    is_application,
    names_imported,
    package_of,
    public_names,
)

import vitkit
from vitkit import Classifier, create, save
from vitkit.cli.entry import main
from vitkit.cli.table import COMMANDS
from vitkit.data import Augmentation, Columns, Preprocessing
from vitkit.models import Backbone, LeNet, ResNet, ResNetConfig, VisionTransformer, ViTConfig
from vitkit.objectives import MaskedAutoencoder, MaskedPatches, SelfDistillation, Supervised
from vitkit.recipes import Data, Optim, Recipe

FILES = sorted(ROOT.rglob("*.py"))
PUBLIC_PACKAGES = [name for name in LAYERS if name not in ("system", "cli", "__main__", "__init__")]
PUBLIC_PACKAGES += ["system.storage", "system.processes", "system.machine", "system.span"]


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def package(file: Path) -> str:
    return package_of(".".join(file.relative_to(ROOT).with_suffix("").parts))


def imported(tree: ast.AST, for_types: bool = True) -> set[str]:
    """Modules of vitkit that a file imports, at the top or anywhere; or but for those that only types
    need."""
    found = set()
    for node in statements(tree, for_types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                f"{node.module}.{alias.name}" if node.module == "vitkit" else node.module
                for alias in node.names
            }
    return {name for name in found if name.startswith("vitkit.")}


def statements(node: ast.AST, for_types: bool = True) -> Iterator[ast.stmt]:
    """All statements in one, at any depth, without their expressions, which are most of a tree."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        if field == "body" and not for_types and is_for_types(node):
            continue
        for each in getattr(node, field, ()):
            if isinstance(each, ast.stmt):
                yield each
            yield from statements(each, for_types)


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def test_imports_are_found_wherever_they_are():
    tree = ast.parse(
        """
import vitkit.a
def f():
    if x:
        from vitkit.b import y
    else:
        while x:
            import vitkit.c, vitkit.d
    match x:
        case 1:
            from vitkit import e
class C:
    try:
        with x:
            import vitkit.f
    except ValueError:
        import vitkit.g
    else:
        import vitkit.h
    finally:
        import vitkit.i
"""
    )
    assert imported(tree) == {f"vitkit.{letter}" for letter in "abcdefghi"}


def test_imports_come_from_lower_layers_or_the_same_package():
    for file in FILES:
        here = package(file)
        if here == "apps":  # says what applications are, and imports nothing
            assert not imported(tree_of(file))
            continue
        for module in imported(tree_of(file)):
            there = package_of(module)
            if there == "__version__":
                continue
            assert there == here or LAYERS[there] < LAYERS[here], (
                f"{file.relative_to(ROOT)} (layer {LAYERS[here]}) imports {module} (layer {LAYERS[there]})"
            )


def test_no_application_is_imported_but_by_the_public_names_and_the_command_line():
    """Neither by the core nor by another application: what two of them share belongs in the core."""
    for file in FILES:
        here = package(file)
        for module in imported(tree_of(file)):
            there = package_of(module)
            if is_application(there):
                assert there == here or here in ("cli", "__init__"), (
                    f"{file.relative_to(ROOT)} imports {module}"
                )


def test_the_list_of_packages_is_as_the_code():
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    assert drawn() in page, (
        "print it by `cd tests && python -m architecture`, and put it into the page"
    )


def test_names_for_one_other_package_are_imported_from_their_module():
    """A public name is imported from its package; what is imported from a module of another package is used
    by that one package alone: what a second package needs is a public name. system/ has none of its own."""
    users = collections.defaultdict(set)
    for file in FILES:
        for module, name in names_imported(file.read_text()):
            there, here = package_of(module), package(file)
            if there in ("system", here) or module == "vitkit":
                continue
            assert not name.startswith("_"), f"{file.relative_to(ROOT)} imports {module}.{name}"
            if module == f"vitkit.{there}":
                assert name in public_names(there), f"{file.relative_to(ROOT)}: {module}.{name}"
            else:
                assert name not in public_names(there), (
                    f"{file.relative_to(ROOT)}: {name} is a public name of vitkit.{there}"
                )
                users[module, name].add(here)
    shared = {name: sorted(packages) for name, packages in users.items() if len(packages) > 1}
    assert not shared, "add them to their package's __init__.pyi"


def test_a_public_name_is_used_by_more_than_one_package():
    """A promise to users is made for what several packages, the documentation, or a package and the tests
    use; and for each command's function with its results."""
    repository = ROOT.parents[1]
    users = collections.defaultdict(set)
    for folder in (ROOT, *(repository / name for name in ("tests", "benchmarks", "examples"))):
        for file in folder.rglob("*.py"):
            user = package(file) if folder == ROOT else folder.name
            for module, name in names_imported(file.read_text()):
                users[module, name].add(user)
    pages = "\n".join(
        page.read_text() for page in [*repository.glob("*.md"), *repository.glob("docs/*.md")]
    )
    written = set(names_imported(pages)) | set(re.findall(r"\b(vitkit(?:\.\w+)+)\.(\w+)", pages))
    for listed in LAYERS:
        if is_application(listed):
            continue
        for name, module in public_names(listed).items():
            of_command = "function" in module or "functions" in module.split(".")
            found = users[f"vitkit.{listed}", name] - {listed}
            enough = len(found) > 1 or found & {"tests", "benchmarks", "examples"}
            assert of_command or enough or (f"vitkit.{listed}", name) in written, (
                f"vitkit.{listed}.{name} is used by {sorted(found) or 'nothing'} alone: remove it from "
                f"__init__.pyi, and import it from vitkit.{module}"
            )


@pytest.mark.parametrize(
    "name", [name for name in LAYERS if ROOT.joinpath(*name.split("."), "__init__.py").exists()]
)
def test_a_package_has_the_names_that_it_lists(name):
    listed = importlib.import_module(f"vitkit.{name}")
    folder = ROOT.joinpath(*name.split("."))
    files = {file.stem for file in folder.iterdir() if file.suffix in (".py", "")}
    for public in getattr(listed, "__all__", ()):
        assert not public.startswith("_")
        assert public not in files, f"Python would put the file {public} in the name's place"
        assert getattr(listed, public) is not None


def test_no_files_import_each_other_in_a_circle():
    """Whether at the top or within a function; imports for types alone do not count. A package's name is
    its list of public names, which imports nothing itself."""
    edges = {}
    names = {module_of(file): file for file in FILES}
    for name, file in names.items():
        edges[name] = imported(tree_of(file), for_types=False) & names.keys() - {name}
    finished = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name in finished:
            return
        for other in sorted(edges[name]):
            visit(other, [*path, name])
        finished.add(name)

    for name in names:
        visit(name, [])


def module_of(file: Path) -> str:
    return ".".join(["vitkit", *file.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    )


def test_three_files_name_torch_distributed():
    named = {
        str(file.relative_to(ROOT)) for file in FILES if "torch.distributed" in file.read_text()
    }
    assert named == {
        "system/processes/ranks.py",
        "system/processes/watchdog.py",
        "training/state/state.py",
    }


def test_models_import_torch_only():
    for file in (ROOT / "models").rglob("*.py"):
        for node in ast.walk(tree_of(file)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names | {"torch", "vitkit", "lazy_loader"}, (
                    f"{file.name} imports {name}"
                )
                assert not name.startswith(("torch.distributed", "torch.optim")), (
                    f"{file.name} imports {name}"
                )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_parameter_of_a_command_is_used(command):
    """By its name, in the body of the function; the settings of recipes: test_settings.py."""
    function = inspect.unwrap(command.load_function())
    tree = ast.parse(inspect.getsource(function)).body[0]
    used = set()
    for statement in tree.body:
        used |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    names = set(inspect.signature(function).parameters) - {"messages"}  # the decorator reads them
    assert not names - used


def imported_by(*argv: str) -> set[str]:
    """The packages, those of vitkit too, that a command imports in a process of its own."""
    code = (
        "import sys; from vitkit.cli import main; status = main(sys.argv[1:]); "
        "sys.stderr.write(' '.join(sys.modules)); sys.exit(status)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True
    )
    modules = run.stderr.split("\n")[-1].split()
    return {part for module in modules for part in (module.split(".")[0], module)}


PICTURES_AND_TABLES = {"torchvision", "matplotlib", "sklearn", "scipy", "pyarrow", "pandas"}
COMPILERS = {"torch._dynamo", "torch._inductor", "torch.distributed.checkpoint"}
PEERS = {"timm", "transformers", "datasets", "huggingface_hub", "fsspec"}
TRAINING = {
    f"vitkit.{name}"
    for name in ("training", "objectives", "recipes", "finetuning", "apps.studies", "apps.suites")
}
HEAVY = PICTURES_AND_TABLES | COMPILERS | PEERS | TRAINING


def test_importing_vitkit_imports_nothing_heavy():
    code = "import sys, vitkit; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(run.stdout.split())
    assert not {"torch", "numpy", "PIL", "rich", "tyro"} & set(run.stdout.split())


def test_the_overview_imports_no_torch():
    assert not {"torch", "numpy", "tyro"} & imported_by("--help")


@pytest.mark.slow
def test_using_a_model_imports_what_it_needs(tmp_path, photographs):
    """The light paths: what somebody waits for who wants one answer."""
    model = str(tmp_path / "model")
    create = (
        "import sys; from vitkit.data import Preprocessing; from vitkit import Classifier, create, save; "
        "model = create('mu/16', classes=2, image=(32, 32)); model.head.weight.data.normal_(); "
        "save(Classifier(model, Preprocessing(size=(32, 32)), ('blue', 'red')), sys.argv[1]); "
        "print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", create, model], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(run.stdout.split())

    image = str(next(photographs.glob("red/*.jpg")))
    modules = imported_by("predict", model, image)
    assert not HEAVY & modules
    check_few_more_than_torchs(modules)
    # SciPy for intervals, and to find several shots of one thing
    assert not (HEAVY - {"scipy"}) & imported_by("evaluate", model, str(photographs))
    assert not (HEAVY - {"scipy", "pyarrow"}) & imported_by(
        "evaluate", model, as_parquet(photographs, tmp_path)
    )


PILLOWS_OWN = {"defusedxml"}  # which Pillow imports where it is installed


@pytest.mark.slow
def test_an_exported_file_answers_without_pytorch(tmp_path, photographs):
    """A file that was exported needs Pillow, numpy and a runtime: an answer takes less than importing
    PyTorch."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from vitkit.exporting import write_export
    from vitkit.runtimes import Export

    model = create("mu/16", classes=2, image=(32, 32))
    model.head.weight.data.normal_()
    classifier = Classifier(model, Preprocessing(size=(32, 32)), ("blue", "red"))
    write_export(classifier, tmp_path / "model.onnx", Export(least=0))
    image = str(next(photographs.glob("red/*.jpg")))
    check_imports_no_pytorch(imported_by("predict", str(tmp_path / "model.onnx"), image))
    code = (
        "import sys; from vitkit.apps.serve.functions.serve import open_model; "
        "open_model(sys.argv[1]); print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        check=True,
    )
    check_imports_no_pytorch(set(run.stdout.split()))


@pytest.mark.slow
def test_a_run_answers_without_pytorch_by_the_file_that_it_keeps(tmp_path, photographs):
    """Where it may: here where float32 is asked for."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model = create("mu/16", classes=2, image=(32, 32))
    model.head.weight.data.normal_()
    run_dir = tmp_path / "run"
    save(Classifier(model, Preprocessing(size=(32, 32)), ("blue", "red")), run_dir / "model")
    (run_dir / "recipe.json").write_text("{}")
    image = str(next(photographs.glob("red/*.jpg")))
    words = ["predict", str(run_dir), image, "--precision", "float32", "--device", "cpu"]
    assert "torch" in imported_by(*words)
    assert main(["export", str(run_dir), "-o", str(run_dir / "model.onnx")]) == 0
    check_imports_no_pytorch(imported_by(*words))
    assert "torch" in imported_by(*words, "--attention", str(tmp_path / "looked"))


def check_imports_no_pytorch(modules: set[str]) -> None:
    """What an exported file needs, and nothing else."""
    packages = {name for name in modules if "." not in name} - set(sys.stdlib_module_names)
    packages = {name for name in packages if name.isidentifier() and not name.startswith("_")}
    packages -= PILLOWS_OWN | {"sitecustomize"}  # the system's own
    assert packages <= {
        "vitkit", "numpy", "PIL", "onnxruntime", "rich", "tyro", "typeguard", "typing_extensions",
        "docstring_parser", "lazy_loader",
    }  # fmt: skip


def as_parquet(photographs: Path, folder: Path) -> str:
    """The same photographs in a parquet file: its path."""
    rows = []
    for file in sorted(photographs.rglob("*.jpg")):
        rows.append({"image": {"bytes": file.read_bytes()}, "label": len(rows) % 2})
    path = folder / "photographs.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def check_few_more_than_torchs(modules: set[str]) -> None:
    """A new name here makes everybody wait who wants one answer."""
    code = "import sys, torch; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    more = {name.split(".")[0] for name in modules - set(run.stdout.split())}
    packages = {name for name in more if name.isidentifier() and not name.startswith("_")}
    assert packages - set(sys.stdlib_module_names) - PILLOWS_OWN <= {
        "vitkit", "torch", "numpy", "PIL", "safetensors", "rich", "tyro", "typeguard", "docstring_parser", "lazy_loader",
    }  # fmt: skip
    own = [name for name in modules if name.startswith("vitkit.")]
    assert len(own) < 210, "importing ten files of our own takes as long as an image"


@pytest.mark.slow
def test_garbage_is_not_looked_for_in_what_was_imported():
    """It is a third of the time that importing torch takes."""
    code = (
        "import gc, sys; sys.argv[1:] = ['models', 'Ti/16']; from vitkit.cli import main; "
        "status = main(); print(status, gc.isenabled(), gc.get_freeze_count())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, enabled, frozen = run.stdout.splitlines()[-1].split()
    assert (status, enabled) == ("0", "True")
    assert int(frozen) > 100_000


@pytest.mark.slow
def test_importing_changes_nothing_in_torch():
    code = (
        "import torch; state = torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()\n"
        "import vitkit.cli, vitkit.recipes, vitkit.prediction, vitkit.inspection\n"
        "for command in vitkit.cli.table.COMMANDS: command.load_function()\n"
        "assert torch.equal(state[0], torch.get_rng_state())\n"
        "assert state[1:] == (torch.get_num_threads(), torch.get_default_dtype())\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_modules_only_define():
    """At the top of a module stand definitions, constants and imports: no loop, no `with`, no bare call."""
    for file in FILES:
        for node in tree_of(file).body:
            assert not isinstance(node, ast.For | ast.While | ast.With | ast.Try), (
                f"{file}:{node.lineno}"
            )
            bare = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
            assert not bare, f"{file}:{node.lineno} does something at import"


def public_things(package):
    module = importlib.import_module(f"vitkit.{package}")
    names = getattr(module, "__all__", None) or [
        n
        for n, v in vars(module).items()
        if not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
    ]
    for public in names:
        thing = getattr(module, public)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{package}.{public}", thing


@pytest.mark.parametrize("name", PUBLIC_PACKAGES)
def test_public_names_are_documented_and_typed(name):
    for full_name, thing in public_things(name):
        check_documented_and_typed(full_name, thing)


def check_documented_and_typed(name, thing):
    doc = inspect.getdoc(thing)
    assert doc and len(doc.split()) >= 4, f"{name} has no docstring"
    if inspect.isfunction(thing):
        signature = inspect.signature(thing)
        changes = (
            inspect.Parameter.VAR_KEYWORD
        )  # vit(name, width=...): settings of a config, checked by name
        untyped = [
            p.name
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.kind is not changes
        ]
        assert not untyped, f"{name}: no type for {untyped}"
        assert signature.return_annotation is not signature.empty, f"{name}: no return type"
        assert name in ("models.vit", "models.named", "models.create", "weights.create") or all(
            p.kind is not changes or p.annotation is not p.empty
            for p in signature.parameters.values()
        )
    else:
        for method, value in vars(thing).items():
            if (
                inspect.isfunction(value)
                and not method.startswith("_")
                and method not in ("forward", "init_weights")
            ):
                assert inspect.getdoc(value), f"{name}.{method} has no docstring"


SHAPED = ["embed", "encode", "features", "forward"]
IMAGES = {VisionTransformer: "(B, C, h·P, w·P)", ResNet: "(B, C, H, W)", LeNet: "(B, C, H, W)"}


@pytest.mark.parametrize("model", IMAGES)
@pytest.mark.parametrize("method", SHAPED)
def test_the_models_seams_say_their_shapes(model, method):
    doc = inspect.getdoc(getattr(model, method))
    assert IMAGES[model] in doc and "->" in doc


def test_every_setting_is_explained_on_the_command_line():
    """tyro takes a field's text from the string below it; none may be without."""
    for config in (
        ViTConfig,
        Backbone,
        ResNetConfig,
        Preprocessing,
        Augmentation,
        Columns,
        Data,
        Optim,
        Supervised,
        MaskedPatches,
        MaskedAutoencoder,
        SelfDistillation,
        Recipe,
    ):
        tree = ast.parse(inspect.getsource(config)).body[0]
        fields = [i for i, node in enumerate(tree.body) if isinstance(node, ast.AnnAssign)]
        for i in fields:
            below = tree.body[i + 1] if i + 1 < len(tree.body) else None
            explained = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            assert explained, f"{config.__name__}.{tree.body[i].target.id} is not explained"


def test_every_module_is_importable_and_says_what_it_is():
    for info in pkgutil.walk_packages([str(ROOT)], "vitkit."):
        assert importlib.import_module(info.name).__doc__, f"{info.name} does not say what it is"


def test_lazy_names_are_those_that_are_listed():
    for name in vitkit.__all__:
        assert getattr(vitkit, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = vitkit.nothing


@pytest.mark.slow
def test_packages_need_no_import_of_their_own():
    code = "import vitkit; print(vitkit.recipes.digits().name, vitkit.data.open_source.__name__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["digits", "open_source"]
    packages = {file.parent.name for file in ROOT.glob("*/__init__.pyi")}
    assert packages < set(vitkit.__all__)


def test_public_names_stay_what_they_are():
    """A module called `train` would replace the function of that name when it is imported."""
    first = {name: getattr(vitkit, name) for name in vitkit.__all__}
    for info in pkgutil.walk_packages([str(ROOT)], "vitkit."):
        importlib.import_module(info.name)
    assert {name: getattr(vitkit, name) for name in vitkit.__all__} == first
    modules = {name for name, thing in first.items() if inspect.ismodule(thing)}
    assert modules == {"apps"} | {file.parent.name for file in ROOT.glob("*/__init__.pyi")}


def test_only_the_command_line_reads_argv_or_exits():
    for file in FILES:
        if file not in (ROOT / "cli" / "entry.py", ROOT / "__main__.py"):
            assert "sys.argv" not in file.read_text() and "sys.exit" not in file.read_text(), file


def test_json_is_parsed_in_one_place():
    """Where a file that is nested too deeply is a ValueError; but for what vitkit has just written."""
    written = {"apps/studies/throughput.py", "weights/destination.py"}
    for file in FILES:
        if str(file.relative_to(ROOT)) not in written | {"system/storage/files.py"}:
            assert "json.loads(" not in file.read_text(), file


def test_names_of_data_sets_are_opened_by_who_says_whether_they_were_typed():
    """A name that stands in a file must run no code: open_source and its like are for programs of people, and
    run it. vitkit's own code opens by source_at and its like, which run none unless they are told."""
    for file in FILES:
        if str(file.relative_to(ROOT)) in ("data/sources/splits.py", "data/__init__.py"):
            continue
        text = file.read_text()
        if re.search(r"\bopen_(source|parts|splits)\b", text):  # in a docstring it may stand
            nodes = list(ast.walk(tree_of(file)))
            names = {node.id for node in nodes if isinstance(node, ast.Name)}
            names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            assert not names & {"open_source", "open_parts", "open_splits"}, file
        if "exec(" in text:
            assert str(file.relative_to(ROOT)) == "system/scripts.py", file


def test_nothing_is_unpickled_but_tensors():
    for file in FILES:
        if not re.search(r"\b(load|loads|Unpickler)\b", file.read_text()):
            continue
        calls = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.Call)]
        for call in calls:
            name = ast.unparse(call.func)
            assert name not in (
                "pickle.load",
                "pickle.loads",
                "pickle.Unpickler",
                "np.load",
                "numpy.load",
            ), file
            if name == "torch.load":
                safe = {word.arg: ast.unparse(word.value) for word in call.keywords}
                assert safe.get("weights_only") == "True", f"{file}:{call.lineno}"


def test_what_is_to_be_cited_is_this_version_and_the_paper():
    """CITATION.cff and the page about it name the same version, and each author of the paper."""
    yaml = pytest.importorskip("yaml")
    repository = Path(__file__).parents[1]
    cited = yaml.safe_load((repository / "CITATION.cff").read_text())
    page = (repository / "docs/citing.md").read_text()
    assert cited["version"] == vitkit.__version__ and f"{{{vitkit.__version__}}}" in page
    assert f"## {vitkit.__version__}" in (repository / "CHANGELOG.md").read_text()
    (paper,) = cited["references"]
    assert paper["title"] in page and len(paper["authors"]) == 12
    for author in paper["authors"]:
        assert f"{author['family-names']}, {author['given-names']}" in page
