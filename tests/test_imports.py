"""The layers of docs/architecture.md: no upward import, no import of private names of other modules, no cycle.

Imports inside functions count; those for type checking alone do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import finola

ROOT = Path(finola.__file__).parent
LAYERS = (
    {"errors", "files", "urls", "locations", "config", "kernels", "propagation", "transitions", "tiling", "metrics"}
    | {"paper.definitions", "paper.recipes", "paper.tables"}
    | {
        "paper.evidence",
        "paper.figures",
        "paper.recognition",
        "paper.tables_main",
        "paper.tables_appendix",
        "paper.tables_recognition",
    }
    | {"image_io", "image_checks", "recipes", "checks", "pixel_net", "layers", "serialization", "hub", "jobs"},
    {"encoders", "decoders", "wave", "autoencoder", "latents", "masked", "photos", "heads", "weights"}
    | {"model_zoo", "model_counts"},
    {"codec", "data", "deployment"},
    {"batch", "training", "evaluation", "baselines", "compare", "paper"},
    {"plotting"},
    {"cli", "app"},
)


def module_name(path: Path) -> str:
    parts = ("finola", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import of the package in a file; the name is empty for `import module`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "finola")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "finola":
            assert node.module is not None
            for alias in node.names:
                target = f"{node.module}.{alias.name}"
                yield (target, "") if target in MODULES else (node.module, alias.name)


EDGES = {name: {target for target, _ in imports(path) if target in MODULES} for name, path in MODULES.items()}


def layer(module: str) -> int:
    """Number of the layer of a module: that of its own name if it is listed, otherwise that of its package."""
    _, package, *rest = module.split(".")
    name = ".".join((package, *rest))
    listed = name if any(name in names for names in LAYERS) else package
    return next(number for number, names in enumerate(LAYERS) if listed in names)


def test_every_module_has_a_layer_and_imports_only_its_own_and_lower_ones() -> None:
    upward = [
        f"{name} imports {target}"
        for name, targets in EDGES.items()
        for target in targets
        if "." in name and "." in target and layer(target) > layer(name)
    ]
    assert not upward


def test_there_is_no_import_cycle() -> None:
    finished: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in finished:
            for target in EDGES[name]:
                visit(target, (*trail, name))
            finished.add(name)

    for name in MODULES:
        visit(name, ())


def test_private_names_stay_in_their_module() -> None:
    private = [
        f"{module_name(path)} imports {target}.{name}"
        for path in MODULES.values()
        for target, name in imports(path)
        if name.startswith("_") and not name.endswith("__")
    ]
    assert not private
