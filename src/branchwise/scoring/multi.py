"""Any of N options: an independent yes or no for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from branchwise.backends.base import Float64Array
from branchwise.scoring.distribution import distribution
from branchwise.scoring.paths import CandidateScores


@dataclass(frozen=True)
class MultiScores:
    """The options' own decisions.

    ``prob_yes``: float64 ``[N]`` at the asked temperature. ``logp_yes``: float64 ``[N]`` at
    temperature 1. ``chosen``: bool ``[N]``. ``probability``: of exactly this set, the options
    taken as independent. ``margin``: least |P(yes) - P(no)|; ``log_score_margin`` likewise in
    nats at temperature 1. ``log_mass``: the least of the winners' log legal masses. ``tie``: an
    option's yes and no were equal, and yes, being listed first, decided.
    """

    prob_yes: Float64Array
    logp_yes: Float64Array
    chosen: NDArray[np.bool_]
    probability: float
    margin: float
    log_score_margin: float
    log_mass: float | None
    tie: bool


def multi_scores(rows: Sequence[CandidateScores], temperature: float) -> MultiScores:
    """Decide each option from its row; a row's candidates are yes, then no. At least one row."""
    found = [distribution(row.logp, temperature) for row in rows]
    winners = np.array([d.order[0] for d in found])
    masses = [
        row.log_mass[winner] for row, winner in zip(rows, winners, strict=True) if row.log_mass is not None
    ]
    decided = np.array([d.prob[winner] for d, winner in zip(found, winners, strict=True)])
    return MultiScores(
        prob_yes=np.array([d.prob[0] for d in found]),
        logp_yes=np.array([d.logp[0] for d in found]),
        chosen=winners == 0,
        probability=float(np.exp(np.log(decided).sum())),
        margin=min(d.margin for d in found),
        log_score_margin=min(d.log_score_margin for d in found),
        log_mass=float(min(masses)) if masses else None,
        tie=any(d.tie for d in found),
    )
