"""Every command and every output of the README is run."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import real_model
from branchwise.schema.build import schema_from_any

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ").partition("#")[0].strip()
    for language, block in BLOCKS
    if language == "console"
    for line in block.splitlines()
]
NUMBER = re.compile(r"\d+\.\d+")


@pytest.fixture(scope="module")
def model():
    real_model.folder()


@pytest.mark.model
def test_the_examples_print_what_the_readme_shows(model):
    """Words to the letter; numbers within 0.02, since machines round differently."""
    scope: dict[str, object] = {"__name__": "__readme__"}
    shown = [(language, block) for language, block in BLOCKS if language in ("python", "text")]
    pairs = list(zip(shown[::2], shown[1::2], strict=True))
    assert len(pairs) == 3
    for (code_language, code), (text_language, expected) in pairs:
        assert (code_language, text_language) == ("python", "text")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec", dont_inherit=True), scope)
        assert NUMBER.sub("#", printed.getvalue()) == NUMBER.sub("#", expected)
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed.getvalue(), expected)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.02)


@pytest.mark.model
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("branchwise")])
def test_the_commands_run(model, command, tmp_path):
    (document,) = [block for language, block in BLOCKS if language == "json"]
    (tmp_path / "ticket.json").write_text(document)
    (tmp_path / "ticket.txt").write_text("I was charged twice, please refund one of the charges.")
    words = shlex.split(command)
    run = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout
    if "--json" in words:
        assert set(json.loads(run.stdout)["value"]) == {"urgent", "category", "tags", "severity"}


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = [command.split()[1] for command in COMMANDS if command.startswith("make")]
    assert made == ["demo", "test"]
    assert set(made) <= set(targets)


def test_the_schema_of_the_readme_is_one():
    (document,) = [block for language, block in BLOCKS if language == "json"]
    assert len(schema_from_any(json.loads(document)).questions) == 4


def test_every_link_of_the_readme_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
