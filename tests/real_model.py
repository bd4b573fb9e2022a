"""The embedded default, for tests on a real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from branchwise.models.catalog import EMBEDDED
from branchwise.models.specs import parse_spec
from branchwise.models.store import find


def folder() -> Path:
    """Its folder; the test is skipped, with what to do, where it is not on this machine."""
    found = find(parse_spec(EMBEDDED))
    if found is None:
        pytest.skip(f"{EMBEDDED} is not on this machine; run: branchwise models pull {EMBEDDED}")
    return found.path
