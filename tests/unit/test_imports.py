"""Importing dtlab is light, and its parts import only what stands below them."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dtlab

PACKAGE = Path(dtlab.__file__).parent
# From the bottom up. `cost` stands beside all of them: everyone may import it, it imports `errors` alone.
LAYERS = (
    "errors", "lazy", "files", "settings_file", "settings_types", "ranks", "collectives", "data", "models",
    "parallel", "train", "diagnose", "track", "tune", "workflow", "sagemaker", "scaffold",
    "figures", "widgets", "course", "commands", "cli",
)  # fmt: skip
HEAVY = ("torch", "numpy", "pyarrow", "pandas", "matplotlib", "IPython")


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("dtlab", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, module: str, is_package: bool) -> set[str]:
    """Dotted names of what a module's source imports, at any depth of its functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def layer(name: str) -> str | None:
    """The part of dtlab that a dotted name belongs to; None outside dtlab and for dtlab itself."""
    parts = name.split(".")
    if parts[0] != "dtlab" or len(parts) == 1:
        return None
    lazy_home = dtlab._HOME.get(parts[1])
    if lazy_home is not None and not (PACKAGE / parts[1]).exists():
        return lazy_home.split(".")[1]
    return None if parts[1].startswith("__") else parts[1]


def height(part: str) -> int:
    """Place from the bottom; a part without one stands at the top and is reported by its own test."""
    return LAYERS.index(part) if part in LAYERS else len(LAYERS)


def faults(module: str, names: set[str]) -> list[str]:
    own = layer(module)
    if own is None:
        return []
    # `python -m dtlab.train` is a door to the command line, not a part of the layer that it lies in.
    own = "cli" if module.endswith("__main__") else own
    found = []
    for name in sorted(names):
        target = layer(name)
        if target is None:
            if own == "cost" and name.split(".")[0] in HEAVY:
                found.append(f"{module} imports {name}: cost works without it")
        elif own == "cost":
            if target not in ("cost", "errors"):
                found.append(f"{module} imports {name}: cost may import dtlab.errors only")
        elif target != "cost" and height(target) > height(own):
            found.append(f"{module} imports {name}: {target} stands above {own}")
    return found


def all_imports() -> dict[str, set[str]]:
    return {
        name: imported(ast.parse(path.read_text()), name, path.name == "__init__.py")
        for name, path in modules().items()
    }


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_dtlab_loads_no_heavy_package() -> None:
    assert run_python(f"import sys, dtlab; print([m for m in {HEAVY!r} if m in sys.modules])") == "[]"


def test_cost_and_every_module_of_it_load_no_heavy_package() -> None:
    names = [name for name in modules() if name.startswith("dtlab.cost")]
    code = f"import sys, {', '.join(names)}; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_every_part_of_the_package_has_its_place() -> None:
    parts = {layer(name) for name in modules()} - {None}
    assert parts <= {*LAYERS, "cost"}, "give the new part its place in LAYERS"


def test_imports_go_downwards_only() -> None:
    assert [fault for name, names in all_imports().items() for fault in faults(name, names)] == []


def test_the_contributing_notes_name_the_parts_from_the_top_down() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    named = text.partition("Imports go downwards only:")[2].partition(".")[0]
    assert [part.strip() for part in named.split(",")] == [*reversed(LAYERS)]


def test_no_import_cycle() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        # Imports inside functions run later and cannot close a cycle at import time.
        top = ast.Module(
            body=[n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], type_ignores=[]
        )
        needed = imported(top, name, path.name == "__init__.py")
        graph[name] = {
            found
            for n in needed
            if (found := n if n in known else n.rpartition(".")[0]) in known and found != name
        } - {"dtlab"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {' -> '.join(error.args[1])}") from None


def test_the_direction_check_notices_an_import_that_goes_up() -> None:
    up = {"train": "dtlab.train.trainer", "lazy": "dtlab.Trainer"}
    assert faults("dtlab.ranks.launcher", {up["train"]}) != []
    assert faults("dtlab.ranks.launcher", {up["lazy"]}) != []
    assert faults("dtlab.cost.billing", {"torch"}) != []
    assert faults("dtlab.cost.billing", {"dtlab.data.batch"}) != []
    relative = imported(ast.parse("from ..train import trainer"), "dtlab.ranks.launcher", False)
    assert faults("dtlab.ranks.launcher", relative) != []
    inside = imported(
        ast.parse("def f():\n    from dtlab.train import trainer"), "dtlab.ranks.launcher", False
    )
    assert faults("dtlab.ranks.launcher", inside) != []
    assert faults("dtlab.train.__main__", {"dtlab.cli.main"}) == []
    assert faults("dtlab.train.trainer", {"dtlab.ranks.launcher", "dtlab.cost.billing", "torch"}) == []
