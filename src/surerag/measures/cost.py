"""The price of calls to a model."""

from __future__ import annotations


def api_cost(
    prompt_tokens: float, completion_tokens: float, prompt_price: float, completion_price: float
) -> float:
    """Cost of tokens read and written (EDC²-RAG, appendix A, Table 8).

    Args:
        prompt_tokens: Tokens that went in.
        completion_tokens: Tokens that came out.
        prompt_price: Price of a million tokens that go in, in any currency.
        completion_price: Price of a million tokens that come out, in the same currency.

    Returns:
        The cost in that currency.

    Raises:
        ValueError: If a number is negative.

    Example:
        >>> round(api_cost(2155.10, 553.29, 0.15, 0.60) * 1e4, 2)
        6.55
    """
    if min(prompt_tokens, completion_tokens, prompt_price, completion_price) < 0:
        raise ValueError("token counts and prices are 0 or more")
    return (prompt_tokens * prompt_price + completion_tokens * completion_price) / 1_000_000
