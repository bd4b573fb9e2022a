"""Fail when an import goes up a floor, around in a circle, or loads a model library too early.

    python scripts/check_floors.py [PACKAGE_FOLDER]

Rules, for every module of the package:

- Its first name below the package has a floor in ``FLOORS``.
- It imports from its own floor and from those below. Imports inside functions count; those under
  ``if TYPE_CHECKING`` don't.
- Imports at module level make no circle.
- Model libraries are imported at module level by the backends that are named for one, and by nobody
  else; nor are those backends.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FLOORS: Mapping[str, int] = {
    "schema": 0,
    "results": 0,
    "errors": 0,
    "config": 0,
    "presets": 0,
    "backends": 1,
    "models": 1,
    "tree": 2,
    "prompt": 2,
    "scoring": 3,
    "joint": 3,
    "calibration": 3,
    "engine": 4,
    "api": 5,
    "progress": 5,
    "cli": 6,
    "server": 6,
    "frames": 6,
    "ray": 6,
}
TOP = max(FLOORS.values()) + 1  # the package itself and its __main__

MODEL_LIBRARIES = ("torch", "transformers", "mlx", "mlx_lm", "llama_cpp", "jax")
MODEL_BACKENDS = ("backends.torch_", "backends.mlx", "backends.llama_cpp")


@dataclass(frozen=True)
class Import:
    """One imported name: where, what, and whether it is run when the module is."""

    line: int
    target: str
    at_module_level: bool


@dataclass(frozen=True)
class Module:
    """A module by its dotted name, with its file and its imports."""

    name: str
    file: Path
    imports: tuple[Import, ...]


def main(arguments: list[str]) -> None:
    default = Path(__file__).parent.parent / "src" / "branchwise"
    folder = Path(arguments[0]) if arguments else default
    modules = read_package(folder)
    offences = [*misplaced(modules, folder.name), *circles(modules), *early_loads(modules, folder.name)]
    if offences:
        sys.exit("\n".join(offences))


def read_package(folder: Path) -> dict[str, Module]:
    """Every module under ``folder`` by its dotted name. A package is named like its ``__init__``."""
    files = {_dotted(file, folder): file for file in sorted(folder.rglob("*.py"))}
    modules = {}
    for name, file in files.items():
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        found = tuple(
            Import(line, _module_of(target, files), at_module_level)
            for node, at_module_level in _import_statements(tree, at_module_level=True)
            for line, target in _targets(node, package)
        )
        modules[name] = Module(name, file, found)
    return modules


def misplaced(modules: Mapping[str, Module], package: str) -> Iterator[str]:
    """Modules without a floor, and imports from a higher one."""
    for module in modules.values():
        floor = floor_of(module.name, package)
        if floor is None:
            yield f"{module.file}:1: {module.name} has no floor; give it one in FLOORS"
            continue
        for imported in module.imports:
            above = floor_of(imported.target, package)
            if above is not None and above > floor:
                yield (
                    f"{module.file}:{imported.line}: {module.name} (floor {floor}) imports "
                    f"{imported.target} (floor {above})"
                )


def floor_of(name: str, package: str) -> int | None:
    """The floor of a dotted name; None for another package's, and for a name without one."""
    first, _, rest = name.partition(".")
    if first != package:
        return None
    if rest in ("", "__main__"):
        return TOP
    return FLOORS.get(rest.partition(".")[0])


def circles(modules: Mapping[str, Module]) -> Iterator[str]:
    """Each circle of module-level imports that a depth-first walk closes."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> Iterator[str]:
        if name in path:
            circle = [*path[path.index(name) :], name]
            yield f"{modules[name].file}:1: circular imports: {' -> '.join(circle)}"
            return
        if name in done:
            return
        for imported in modules[name].imports:
            if imported.at_module_level and imported.target in modules:
                yield from walk(imported.target, [*path, name])
        done.add(name)

    for name in modules:
        yield from walk(name, [])


def early_loads(modules: Mapping[str, Module], package: str) -> Iterator[str]:
    """Module-level imports of a model library, or of a backend that has one."""
    backends = tuple(f"{package}.{prefix}" for prefix in MODEL_BACKENDS)
    for module in modules.values():
        if module.name.startswith(backends):
            continue
        for imported in module.imports:
            library = imported.target.partition(".")[0] in MODEL_LIBRARIES
            if imported.at_module_level and (library or imported.target.startswith(backends)):
                yield (
                    f"{module.file}:{imported.line}: {module.name} imports {imported.target} at module "
                    "level; import it in the function that needs it"
                )


def _import_statements(
    node: ast.AST, *, at_module_level: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import below ``node``, and whether it runs with the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_module_level
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for statement in child.orelse:
                yield from _import_statements(ast.Module([statement], []), at_module_level=at_module_level)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _import_statements(child, at_module_level=at_module_level and not function)


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[int, str]]:
    """The dotted names that an import statement may bind, with its line."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name
        return
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        kept = parents[: len(parents) - node.level + 1]
        base = ".".join([*kept, base] if base else kept)
    for alias in node.names:
        yield node.lineno, f"{base}.{alias.name}"


def _module_of(target: str, files: Mapping[str, Path]) -> str:
    """``target`` if it is a module or foreign; the module that holds it if it is a name of ours."""
    parent = target.rpartition(".")[0]
    return parent if target not in files and parent in files else target


def _dotted(file: Path, folder: Path) -> str:
    parts = [folder.name, *file.relative_to(folder).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    main(sys.argv[1:])
