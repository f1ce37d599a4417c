"""The price of calls to a model."""

from __future__ import annotations


def api_cost(
    prompt_tokens: float,
    completion_tokens: float,
    prompt_price: float,
    completion_price: float,
    cached_tokens: float = 0,
    cached_price: float | None = None,
) -> float:
    """Cost of tokens read and written (EDC²-RAG, appendix A, Table 8).

    Args:
        prompt_tokens: Tokens that went in.
        completion_tokens: Tokens that came out.
        prompt_price: Price of a million tokens that go in, in any currency.
        completion_price: Price of a million tokens that come out, in the same currency.
        cached_tokens: Tokens among those that went in that the server had in its cache.
        cached_price: Price of a million of these; None for that of any that go in.

    Returns:
        The cost in that currency.

    Raises:
        ValueError: If a number is negative, or more tokens were in the cache than went in.

    Example:
        >>> round(api_cost(2155.10, 553.29, 0.15, 0.60) * 1e4, 2)
        6.55
        >>> api_cost(1000, 0, 2.0, 8.0, cached_tokens=900, cached_price=0.2)
        0.00038
    """
    known = prompt_price if cached_price is None else cached_price
    if min(prompt_tokens, completion_tokens, prompt_price, completion_price, cached_tokens, known) < 0:
        raise ValueError("token counts and prices are 0 or more")
    if cached_tokens > prompt_tokens:
        raise ValueError("tokens in the cache are among those that went in")
    read = (prompt_tokens - cached_tokens) * prompt_price + cached_tokens * known
    return (read + completion_tokens * completion_price) / 1_000_000
