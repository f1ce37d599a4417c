"""The cost of tokens, and the latency that a gate saves."""

from __future__ import annotations


def api_cost(
    prompt_tokens: float, completion_tokens: float, prompt_price: float, completion_price: float
) -> float:
    """Return the cost of calls (EDC²-RAG, appendix A, Table 8); prices are for a million tokens.

    Example:
        >>> round(api_cost(2155.10, 553.29, 0.15, 0.60) * 1e4, 2)
        6.55
    """
    if min(prompt_tokens, completion_tokens, prompt_price, completion_price) < 0:
        raise ValueError("token counts and prices must be at least 0")
    return (prompt_tokens * prompt_price + completion_tokens * completion_price) / 1_000_000


def latency_overhead(retrieval_rate: float, retrieval_latency: float, gate_latency: float) -> float:
    """Return the mean time of gating and retrieval per query: T_entropy + R · T_retrieval (L-RAG, Eq. 8).

    Args:
        retrieval_rate: Share R of the queries for which passages are retrieved, in [0, 1].
        retrieval_latency: Time of one retrieval, T_retrieval, in any unit.
        gate_latency: Time of the gate for each query, T_entropy, in the same unit.

    Example:
        >>> round(latency_overhead(0.74, 500, 50))
        420
    """
    return gate_latency + _rate(retrieval_rate) * retrieval_latency


def latency_saving(retrieval_rate: float, retrieval_latency: float, gate_latency: float) -> float:
    """Return the mean time saved per query: (1 − R) · T_retrieval − T_entropy (L-RAG, Eq. 9, Table III).

    Arguments are those of :func:`latency_overhead`. The result is negative if the gate takes more time than
    it saves.

    Example:
        >>> [[round(latency_saving(r, t, 50)) for t in (200, 500, 1000)] for r in (0.92, 0.74, 0.54)]
        [[-34, -10, 30], [2, 80, 210], [42, 180, 410]]
    """
    return (1 - _rate(retrieval_rate)) * retrieval_latency - gate_latency


def break_even_latency(retrieval_rate: float, gate_latency: float) -> float:
    """Return the retrieval latency above which a gate saves time: T_entropy / (1 − R) (L-RAG, from Eq. 9).

    It is infinite if passages are retrieved for every query.

    Example:
        >>> [round(break_even_latency(rate, 50)) for rate in (0.92, 0.74, 0.54)]
        [625, 192, 109]
    """
    return float("inf") if _rate(retrieval_rate) == 1 else gate_latency / (1 - retrieval_rate)


def _rate(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise ValueError(f"the retrieval rate must be in [0, 1], got {rate!r}")
    return rate
