"""The cost of tokens, and the latency that a gate saves."""

from __future__ import annotations


def api_cost(
    prompt_tokens: float, completion_tokens: float, prompt_price: float, completion_price: float
) -> float:
    """Return the cost of calls from their numbers of tokens (EDC²-RAG, Table 8).

    ``prompt_price`` and ``completion_price`` are the prices of one million tokens. The cost has the same
    currency as these prices.

    Example:
        >>> round(api_cost(2155.10, 553.29, 0.15, 0.60) * 1e4, 2)
        6.55
    """
    if min(prompt_tokens, completion_tokens, prompt_price, completion_price) < 0:
        raise ValueError("token counts and prices must be at least 0")
    return (prompt_tokens * prompt_price + completion_tokens * completion_price) / 1_000_000


def latency_overhead(retrieval_rate: float, retrieval_latency: float, gate_latency: float) -> float:
    """Return the mean time per query that a gate and retrievals take together (L-RAG, Eq. 8).

    The time is ``gate_latency + retrieval_rate * retrieval_latency``.

    Args:
        retrieval_rate: Share of the queries for which passages are retrieved, in [0, 1] (the paper's R).
        retrieval_latency: Time of one retrieval, in any unit (T_retrieval).
        gate_latency: Time of the gate for each query, in the same unit (T_entropy).

    Example:
        >>> round(latency_overhead(0.74, 500, 50))
        420
    """
    return gate_latency + _rate(retrieval_rate) * retrieval_latency


def latency_saving(retrieval_rate: float, retrieval_latency: float, gate_latency: float) -> float:
    """Return the mean time per query that a gate saves, compared with a retrieval for every query.

    The saving is ``(1 - retrieval_rate) * retrieval_latency - gate_latency`` (L-RAG, Eq. 9, Table III), which
    is negative if the gate takes more time than the omitted retrievals. Arguments are those of
    :func:`latency_overhead`.

    Example:
        >>> [[round(latency_saving(r, t, 50)) for t in (200, 500, 1000)] for r in (0.92, 0.74, 0.54)]
        [[-34, -10, 30], [2, 80, 210], [42, 180, 410]]
    """
    return (1 - _rate(retrieval_rate)) * retrieval_latency - gate_latency


def break_even_latency(retrieval_rate: float, gate_latency: float) -> float:
    """Return the ``retrieval_latency`` above which a gate saves time (L-RAG, from Eq. 9).

    The value is ``gate_latency / (1 - retrieval_rate)``; it is infinite if passages are retrieved for every
    query. Arguments are those of :func:`latency_overhead`.

    Example:
        >>> [round(break_even_latency(rate, 50)) for rate in (0.92, 0.74, 0.54)]
        [625, 192, 109]
    """
    return float("inf") if _rate(retrieval_rate) == 1 else gate_latency / (1 - retrieval_rate)


def _rate(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise ValueError(f"the retrieval rate must be in [0, 1], got {rate!r}")
    return rate
