"""Fail when a module, a function or a list of parameters is too long to read.

python scripts/check_sizes.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6

# Functions whose many parameters are right, each with the reason: "file:function" → why.
MANY_PARAMETERS: Mapping[str, str] = {
    "branchwise/api.py:Decider.__init__": "public constructor: each setting by keyword",
    "branchwise/backends/torch_attention.py:attend": "transformers calls attention functions with these",
    "branchwise/cli/decide.py:decide": "command line: one parameter per option",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(arguments: list[str]) -> None:
    root = Path(__file__).parent.parent
    folders = [Path(name) for name in arguments] or [root / "src" / "branchwise", root / "scripts"]
    offences = [offence for folder in folders for offence in check_folder(folder)]
    if offences:
        sys.exit("\n".join(offences))


def check_folder(folder: Path) -> Iterator[str]:
    """What is too long under ``folder``, a line each, and exceptions that nothing needs any more."""
    unused = {name for name in MANY_PARAMETERS if (folder.parent / name.partition(":")[0]).is_file()}
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MAX_MODULE_LINES:
            yield f"{file}:1: {lines} lines, at most {MAX_MODULE_LINES}; split the module"
        module = file.relative_to(folder.parent).as_posix()
        for name, function, is_method in _functions(ast.parse(text, filename=str(file))):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{file}:{function.lineno}: {name} has {length} lines, at most {MAX_FUNCTION_LINES}"
            count = parameter_count(function, is_method=is_method)
            if count <= MAX_PARAMETERS:
                continue
            if f"{module}:{name}" in MANY_PARAMETERS:
                unused.discard(f"{module}:{name}")
            else:
                yield f"{file}:{function.lineno}: {name} has {count} parameters, at most {MAX_PARAMETERS}"
    for name in sorted(unused):
        yield f"{folder.parent / name}: an exception in MANY_PARAMETERS that nothing needs; delete it"


def parameter_count(function: Function, *, is_method: bool) -> int:
    """Parameters of every kind, without the object or class that a method is bound to."""
    arguments = function.args
    count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    count += (arguments.vararg is not None) + (arguments.kwarg is not None)
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
    return count - (is_method and not static)


def _functions(
    node: ast.AST, outer: tuple[str, ...] = (), *, in_class: bool = False
) -> Iterator[tuple[str, Function, bool]]:
    """Every function with its dotted name, and whether it is a method."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield ".".join([*outer, child.name]), child, in_class
            yield from _functions(child, (*outer, child.name))
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, (*outer, child.name), in_class=True)
        else:
            yield from _functions(child, outer, in_class=in_class)


if __name__ == "__main__":
    main(sys.argv[1:])
