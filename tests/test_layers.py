"""The order of the packages: each imports only what stands before it, as ARCHITECTURE.md says."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import turbokv_eval

ROOT = Path(turbokv_eval.__file__).parent

# From the ground up; what stands in one line may not import each other, but modules of one package may.
ORDER = (
    ("errors",),
    ("progress", "units"),
    ("fork", "reference"),
    ("machine", "models"),
    ("programs",),
    ("results",),
    ("comparison",),
    ("output",),
    ("api", "doctor", "runtime", "lab"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {name: height for height, names in enumerate(ORDER) for name in names}


def imported(source: str) -> Iterator[str]:
    """The first names below `turbokv_eval` that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("turbokv_eval."))
        elif isinstance(node, ast.ImportFrom) and node.module == "turbokv_eval":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turbokv_eval."):
            yield str(node.module).split(".")[1]


def faults(own: str, source: str) -> list[str]:
    """What a module of the package or flat module `own` imports and may not."""
    return [name for name in imported(source) if name != own and HEIGHT[name] >= HEIGHT[own]]


def own_name(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py" and "_fork" not in path.parts)


def test_every_package_and_flat_module_has_its_place() -> None:
    assert {own_name(path) for path in MODULES} == set(HEIGHT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_stands_before_it(path: Path) -> None:
    assert not faults(own_name(path), path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "from turbokv_eval.output import report",
        "from turbokv_eval import api",
        "import turbokv_eval.commands.gate",
        "def f():\n    from turbokv_eval.comparison.run import Comparison",
    ],
)
def test_a_module_that_reaches_up_is_noticed(source: str) -> None:
    assert faults("programs", source)
    assert not faults("__main__", source)
