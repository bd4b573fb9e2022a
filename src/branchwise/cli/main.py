"""``branchwise``: one command, a module for each subcommand.

Exit status: 0 done, 1 an error of the input, the model or the machine, 2 wrong usage, 130 stopped
by Ctrl-C. What a command prints with ``--json`` is JSON and nothing else; notices go to standard
error.
"""

from __future__ import annotations

import logging
import sys

import typer

from branchwise.cli.decide import decide
from branchwise.cli.doctor import doctor
from branchwise.cli.models import models
from branchwise.errors import BranchwiseError

app = typer.Typer(
    name="branchwise",
    help="Typed decisions with probabilities, from one packed pass of a local language model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(decide)
app.command()(doctor)
app.add_typer(models, name="models")


@app.callback()
def options(verbose: bool = typer.Option(False, "--verbose", "-v", help="Say what is being done.")) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO if verbose else logging.WARNING, format="%(message)s"
    )


def main() -> None:
    """Entry point of the ``branchwise`` script."""
    try:
        app()
    except BranchwiseError as exc:
        print(f"branchwise: {exc}", file=sys.stderr)  # noqa: T201 - what a command line is for
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
