"""The nucleus of top-p sampling, where the likeliest few tokens hold its mass and where they do not."""

import pytest
import torch

from surerag.readers.local.decoding import warp_logits


@pytest.mark.parametrize("vocabulary", [700, 5000, 32_000])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("shape", ["plain", "ties", "impossible tokens"])
def test_the_nucleus_is_that_of_sorted_tokens(vocabulary: int, spread: float, shape: str) -> None:
    logits = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    logits[0] *= 3  # a row that is narrower than the others
    if shape == "ties":
        logits = (logits * 2).round() / 2
    if shape == "impossible tokens":
        logits[:, : vocabulary // 3] = -torch.inf
    ordered = logits.double().sort(-1, descending=True).values
    masses = ordered.softmax(-1).cumsum(-1)
    for top_p in (0.1, 0.5, 0.9, 0.99):
        least = ordered.gather(-1, (masses < top_p).sum(-1, keepdim=True)).float()
        kept = warp_logits(logits, None, top_p) > -torch.inf
        told_apart = ~((masses - top_p).abs() < 3e-6).any(-1)  # else rounding decides about one token
        assert torch.equal(kept[told_apart], (logits >= least)[told_apart])


def test_a_mass_that_rounding_never_reaches_keeps_all_tokens() -> None:
    logits = torch.randn(2, 50_000, generator=torch.Generator().manual_seed(0)) * 0.1
    kept = warp_logits(logits, None, 1 - 1e-9)
    assert (kept > -torch.inf).float().mean() > 0.99


def test_a_row_keeps_its_nucleus_whatever_it_is_batched_with() -> None:
    logits = torch.randn(5, 20_000, generator=torch.Generator().manual_seed(3))
    logits[::2] *= 4
    together = warp_logits(logits, None, 0.95)
    alone = torch.cat([warp_logits(row[None], None, 0.95) for row in logits])
    assert torch.equal(together, alone)
