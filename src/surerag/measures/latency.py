"""Savings of a gate: the arithmetic of L-RAG's latency model."""

from __future__ import annotations


def latency_overhead(retrieval_rate: float, retrieval_latency: float, gate_latency: float) -> float:
    """Time that gating and what it retrieves add to a query: T_entropy + R · T_retrieval (L-RAG, Eq. 8).

    Args:
        retrieval_rate: Share R of queries that still retrieve, in [0, 1].
        retrieval_latency: Time of one retrieval, T_retrieval, in any unit.
        gate_latency: Time that the gate costs each query, T_entropy, in the same unit.

    Returns:
        The overhead in that unit; without a gate it is T_retrieval.

    Raises:
        ValueError: If the rate is outside [0, 1].

    Example:
        >>> round(latency_overhead(0.74, 500, 50))
        420
    """
    _check_rate(retrieval_rate)
    return gate_latency + retrieval_rate * retrieval_latency


def latency_saving(retrieval_rate: float, retrieval_latency: float, gate_latency: float) -> float:
    """Time saved per query: (1 − R) · T_retrieval − T_entropy (L-RAG, Eq. 9, Table III).

    Args:
        retrieval_rate: Share R of queries that still retrieve, in [0, 1].
        retrieval_latency: Time of one retrieval, T_retrieval, in any unit.
        gate_latency: Time that the gate costs each query, T_entropy, in the same unit.

    Returns:
        The saving in that unit; negative where the gate costs more than it saves.

    Raises:
        ValueError: If the rate is outside [0, 1].

    Example:
        >>> [[round(latency_saving(r, t, 50)) for t in (200, 500, 1000)] for r in (0.92, 0.74, 0.54)]
        [[-34, -10, 30], [2, 80, 210], [42, 180, 410]]
    """
    _check_rate(retrieval_rate)
    return (1 - retrieval_rate) * retrieval_latency - gate_latency


def break_even_latency(retrieval_rate: float, gate_latency: float) -> float:
    """Retrieval latency above which gating pays: T_entropy / (1 − R) (L-RAG, where Eq. 9 is 0).

    Args:
        retrieval_rate: Share R of queries that still retrieve, in [0, 1].
        gate_latency: Time that the gate costs each query, T_entropy, in any unit.

    Returns:
        The break-even latency in that unit; infinite where every query retrieves.

    Raises:
        ValueError: If the rate is outside [0, 1].

    Example:
        >>> [round(break_even_latency(rate, 50)) for rate in (0.92, 0.74, 0.54)]
        [625, 192, 109]
    """
    _check_rate(retrieval_rate)
    return float("inf") if retrieval_rate == 1 else gate_latency / (1 - retrieval_rate)


def _check_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"a retrieval rate lies in [0, 1], got {rate!r}")
