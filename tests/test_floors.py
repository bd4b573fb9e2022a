"""The two scripts that keep the tree in shape: green on it, red on what is planted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts"


def run(script: str, *arguments: Path) -> tuple[int, str]:
    """Exit status and standard error; nothing else is printed."""
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "branchwise"
    folder.mkdir()
    return folder


def plant(package: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def test_the_tree_keeps_the_rules():
    assert run("check_floors.py") == (0, "")
    assert run("check_sizes.py") == (0, "")


def test_what_is_allowed_passes(package):
    plant(
        package,
        {
            "__init__.py": "from branchwise.api import Decider",
            "__main__.py": "from branchwise.cli.main import main",
            "errors.py": "from __future__ import annotations\nimport json",
            "api.py": "from typing import TYPE_CHECKING\nfrom branchwise.errors import Error\n"
            "if TYPE_CHECKING:\n    import torch\n    from branchwise.cli.main import main\n"
            "class Decider: pass",
            "cli/main.py": "def main():\n    from branchwise.api import Decider\n    import torch",
            "models/__init__.py": "",
            "models/store.py": "from branchwise.models import pull\nfrom .pull import get",
            "models/wheel.py": "from . import pull",
            "models/pull.py": "def get():\n    from branchwise.models.store import find",
            "backends/torch_model.py": "import torch\nfrom transformers import AutoModel\n"
            "from branchwise.backends.torch_load import load",
            "backends/torch_load.py": "import torch.nn",
            "backends/registry.py": "def open_it():\n    import branchwise.backends.torch_model",
        },
    )
    assert run("check_floors.py", package) == (0, "")


@pytest.mark.parametrize(
    "statement",
    [
        "from branchwise.api import Decider",
        "import branchwise.api",
        "import branchwise.api as api",
        "from branchwise import api",
        "from branchwise import Decider",
        "from ..api import Decider",
        "from .. import api",
        "def inside():\n    from branchwise.api import Decider",
        "class Inside:\n    import branchwise.api",
        "try:\n    pass\nfinally:\n    import branchwise.api",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import branchwise.api",
    ],
)
def test_an_import_from_a_higher_floor_is_named(package, statement):
    plant(
        package,
        {
            "__init__.py": "",
            "api.py": "Decider = 1",
            "tree/__init__.py": "",
            "tree/trie.py": f"\n{statement}",
        },
    )
    status, printed = run("check_floors.py", package)
    assert status == 1
    line = 2 + statement[: statement.rindex("import ")].count("\n")
    place = f"{package / 'tree' / 'trie.py'}:{line}"
    assert printed.startswith(f"{place}: branchwise.tree.trie (floor 2) imports")
    package_itself = statement == "from branchwise import Decider"
    assert printed.endswith(" branchwise (floor 7)" if package_itself else " branchwise.api (floor 5)")


def test_a_module_without_a_floor_is_named(package):
    plant(package, {"helpers.py": "", "utils/text.py": ""})
    status, printed = run("check_floors.py", package)
    assert status == 1
    assert f"{package / 'helpers.py'}:1: branchwise.helpers has no floor" in printed
    assert "branchwise.utils.text has no floor" in printed


def test_a_circle_is_named_from_end_to_end(package):
    plant(
        package,
        {
            "scoring/a.py": "from branchwise.scoring import b",
            "scoring/b.py": "from branchwise.scoring.c import thing",
            "scoring/c.py": "if 1:\n    import branchwise.scoring.a\nthing = 1",
            "scoring/d.py": "import branchwise.scoring.a",
        },
    )
    status, printed = run("check_floors.py", package)
    assert status == 1
    names = [f"branchwise.scoring.{name}" for name in "abca"]
    assert printed == f"{package / 'scoring' / 'a.py'}:1: circular imports: {' -> '.join(names)}"


@pytest.mark.parametrize("library", ["torch", "transformers", "mlx.core", "mlx_lm", "llama_cpp", "jax.numpy"])
def test_a_model_library_at_module_level_is_named(package, library):
    plant(
        package, {"backends/registry.py": f"import json\nimport {library} as x\ndef f():\n    import torch"}
    )
    status, printed = run("check_floors.py", package)
    assert status == 1
    place = f"{package / 'backends' / 'registry.py'}:2: branchwise.backends.registry"
    assert printed.startswith(f"{place} imports {library} at module level")
    assert len(printed.splitlines()) == 1


def test_a_backend_of_a_model_library_at_module_level_is_named(package):
    plant(
        package,
        {
            "backends/torch_model.py": "import torch\nload = 1",
            "backends/registry.py": "from branchwise.backends.torch_model import load",
        },
    )
    status, printed = run("check_floors.py", package)
    assert status == 1
    assert "registry imports branchwise.backends.torch_model at module level" in printed


def lines(count: int) -> str:
    return "    x = 1\n" * count


def test_sizes_at_the_limit_pass(package):
    plant(
        package,
        {
            "config.py": "x = 1\n" * 500,
            "results.py": f"def whole():\n{lines(59)}",
            "errors.py": "class A:\n    def f(self, a, b, c, *, d, e, g): pass\n"
            "    @classmethod\n    def h(cls, a, b, /, c, d, *e, **f): pass\n",
        },
    )
    assert run("check_sizes.py", package) == (0, "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x = 1\n" * 501, ":1: 501 lines, at most 500"),
        (f"\ndef long():\n{lines(60)}", ":2: long has 61 lines, at most 60"),
        (f"class A:\n  async def long(self):\n{lines(60)}", ":2: A.long has 61 lines"),
        ("def wide(a, b, c, d, e, f, g): pass", ":1: wide has 7 parameters, at most 6"),
        ("def wide(a, b, /, c, *d, e, f, **g): pass", ":1: wide has 7 parameters"),
        ("def wide(self, b, c, d, e, f, g): pass", ":1: wide has 7 parameters"),
        ("class A:\n def wide(self, a, b, c, d, e, f, g): pass", ":2: A.wide has 7 parameters"),
        ("class A:\n @staticmethod\n def wide(a, b, c, d, e, f, g): pass", ":3: A.wide has 7 parameters"),
        ("def f():\n def wide(a, b, c, d, e, f, g): pass", ":2: f.wide has 7 parameters"),
    ],
)
def test_what_is_too_long_is_named(package, text, named):
    plant(package, {"config.py": text})
    status, printed = run("check_sizes.py", package)
    assert status == 1
    assert printed.startswith(f"{package / 'config.py'}{named}")
    assert len(printed.splitlines()) == 1


def test_an_exception_that_nothing_needs_is_named(package):
    wide = "def __init__(self, a, b, c, d, e, f, g): pass"
    plant(package, {"api.py": f"class Decider:\n    {wide}"})
    assert run("check_sizes.py", package) == (0, "")
    plant(package, {"api.py": "class Decider:\n    def __init__(self): pass"})
    status, printed = run("check_sizes.py", package)
    assert status == 1
    assert "api.py:Decider.__init__: an exception in MANY_PARAMETERS that nothing needs" in printed
