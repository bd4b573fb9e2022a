"""The text a model sees. Pure strings: which parts are markers, which are data, where to cut."""

from branchwise.prompt.contexts import context_text
from branchwise.prompt.fence import fenced, nonce_of
from branchwise.prompt.layouts import LAYOUTS, Layout
from branchwise.prompt.pieces import Piece, PromptPlan, RowText, Special
from branchwise.prompt.scaffold import Scaffold, scaffold_for
from branchwise.prompt.wording import PROMPT_VERSION

__all__ = [
    "LAYOUTS",
    "PROMPT_VERSION",
    "Layout",
    "Piece",
    "PromptPlan",
    "RowText",
    "Scaffold",
    "Special",
    "context_text",
    "fenced",
    "nonce_of",
    "scaffold_for",
]
