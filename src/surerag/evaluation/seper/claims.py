"""What the study was to show, and whether it does. The bounds were set before any result was looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from surerag.evaluation.formatting import percent
from surerag.evaluation.lazy_rag.results import Claim
from surerag.evaluation.seper.analysis import TWO_HOP, Scored
from surerag.evaluation.seper.contexts import Role
from surerag.evaluation.seper.results import Retrievers, RoleRow, Rung, SampleRow
from surerag.evaluation.seper.scores import FAIR, HARD_DEFAULT, SOFT_DEFAULT
from surerag.evaluation.statistics import Estimate, PairedDifference

NEAR_ZERO = 0.1
"""Property 2: the whole interval of the mean ΔSePer lies within this of 0."""

NOT_WORSE = 0.01
"""Correlation by which the soft kernel may fall behind the hard one."""

ENOUGH = 0.99
"""Section 4.2: ten samples within 1 % of twenty."""


def claims(
    single: Scored,
    two_hop: Scored,
    roles: Sequence[RoleRow],
    ladder: Sequence[Rung],
    sampling: Sequence[SampleRow],
    retrievers: Retrievers,
) -> tuple[Claim, ...]:
    """Judge every claim that there are data for."""
    both = [
        (name, some) for name, some in (("single-hop", single), (TWO_HOP, two_hop)) if len(some.utilities) > 1
    ]
    return (
        *(_best(name, some) for name, some in both),
        *(_soft(name, some) for name, some in both),
        *_near_zero(roles),
        *_rises(ladder),
        *_partial(roles),
        *_enough(sampling),
        Claim(
            f"Mean ΔSePer ranks {len(retrievers.rows)} retrievers as their recall at {retrievers.k} does",
            f"Spearman {interval(retrievers.rank, 2)}",
            retrievers.rank.low > 0,
        ),
    )


def interval(found: Estimate | PairedDifference, digits: int = 3, sign: str = "") -> str:
    """Write an estimate with its interval; n/a where there is none."""
    if not math.isfinite(found.value):
        return "n/a"
    return f"{found.value:{sign}.{digits}f} [{found.low:{sign}.{digits}f}, {found.high:{sign}.{digits}f}]"


def _best(name: str, some: Scored) -> Claim:
    known = {label: value for label in FAIR if math.isfinite(value := some.estimate(label).value)}
    statement = f"ΔSePer correlates better than all that it is compared with, {name}"
    if not known:
        return Claim(statement, "nothing to compare with: every other measure is constant", holds=False)
    other = max(known, key=known.__getitem__)
    gap = some.gap(SOFT_DEFAULT, other)
    return Claim(statement, f"{interval(gap, sign='+')} to {other}", gap.low > 0)


def _soft(name: str, some: Scored) -> Claim:
    gap = some.gap(SOFT_DEFAULT, HARD_DEFAULT)
    return Claim(
        f"The soft kernel is at least as good as the hard one, {name}",
        f"{interval(gap, sign='+')}",
        gap.low > -NOT_WORSE,
    )


def _near_zero(roles: Sequence[RoleRow]) -> list[Claim]:
    wanted = {Role.IRRELEVANT.value: "Irrelevant passages", Role.KNOWN.value: "Passages known by heart"}
    return [
        Claim(
            f"{wanted[row.role]} are worth about 0, {row.questions} questions (Property 2)",
            interval(row.delta, sign="+"),
            max(abs(row.delta.low), abs(row.delta.high)) <= NEAR_ZERO,
        )
        for row in roles
        if row.role in wanted
    ]


def _rises(ladder: Sequence[Rung]) -> list[Claim]:
    found = []
    for group in dict.fromkeys(rung.questions for rung in ladder):
        rungs = [rung for rung in ladder if rung.questions == group]
        steps = [(b, b.rise) for a, b in pairwise(rungs) if b.utility > a.utility and b.rise is not None]
        found.append(
            Claim(
                f"Every step that adds relevance raises ΔSePer, {group} (Property 3)",
                "; ".join(f"{b.added.removeprefix('+ ')} {interval(rise, 2, '+')}" for b, rise in steps),
                all(rise.low > 0 for _, rise in steps),
            )
        )
    return found


def _partial(roles: Sequence[RoleRow]) -> list[Claim]:
    of = {row.role: row.delta for row in roles if row.questions == TWO_HOP}
    whole = of.get(Role.BOTH_HALVES.value)
    return [
        Claim(
            f"The {role.value} of a chain is worth something, and less than the whole (Table 7)",
            f"{interval(of[role.value], 2, '+')}, whole {interval(whole, 2, '+')}",
            of[role.value].low > 0 and of[role.value].high < whole.low,
        )
        for role in (Role.FIRST_HALF, Role.SECOND_HALF)
        if whole is not None and role.value in of
    ]


def _enough(sampling: Sequence[SampleRow]) -> list[Claim]:
    at = {row.n: row for row in sampling if row.kernel == "soft"}
    if not {10, 20} <= at.keys():
        return []
    shares = [
        getattr(at[10], side).mean / whole
        for side in ("single", "two_hop")
        if (whole := getattr(at[20], side).mean) > 0
    ]
    return [
        Claim(
            f"Ten samples correlate at least {percent(ENOUGH, 0)} as well as twenty (Figure 3)",
            ", ".join(percent(share) for share in shares) or "n/a",
            bool(shares) and min(shares) >= ENOUGH,
        )
    ]
