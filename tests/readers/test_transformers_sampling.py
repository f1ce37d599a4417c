"""Choosing tokens: the right distribution, the same choice in any company, exact numbers."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from surerag.errors import LogprobsError
from surerag.messages import SamplingParams
from surerag.readers.local.decoding import Draw, choose, opinions, sequence_key, warp_logits

ANY = SamplingParams(temperature=1.0)


def draws(count: int, sampling: SamplingParams = ANY) -> list[Draw]:
    return [Draw(sampling, sequence_key([1, 2, 3], seed=0, sample=sample), step=0) for sample in range(count)]


def frequencies(logits: torch.Tensor, sampling: SamplingParams, count: int = 4000) -> np.ndarray:
    chosen = choose(logits.expand(count, -1), draws(count, sampling))
    return np.bincount([opinion.token for opinion in chosen], minlength=logits.shape[-1])


@pytest.mark.parametrize("vocabulary", [7, 256, 700])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_tokens_come_as_often_as_the_model_says(vocabulary: int, temperature: float) -> None:
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    expected = (logits / temperature).softmax(-1)[0].double().numpy()
    observed = frequencies(logits, SamplingParams(temperature=temperature))
    common = expected * observed.sum() >= 5
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum()) * observed.sum()
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_top_k_and_top_p_leave_the_likeliest_tokens() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert set(np.nonzero(frequencies(logits, SamplingParams(temperature=1.0, top_k=2), 300))[0]) == {0, 1}
    assert set(np.nonzero(frequencies(logits, SamplingParams(temperature=1.0, top_p=0.9), 300))[0]) == {
        0,
        1,
        2,
    }
    assert set(np.nonzero(frequencies(logits, SamplingParams(temperature=1.0, top_p=0.01), 300))[0]) == {0}
    assert torch.isfinite(warp_logits(logits, 3, 0.75)).tolist() == [[True, True, False, False]]


def test_numbers_are_the_models_own_whatever_the_warping() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)) * 4
    (chosen,) = choose(logits, draws(1, SamplingParams(temperature=3.0, top_k=5)))
    logs = logits.double().log_softmax(-1)[0]
    assert chosen.logprob == pytest.approx(logs[chosen.token].item(), abs=1e-6)
    assert chosen.entropy == pytest.approx(-(logs.exp() * logs).sum().item(), abs=1e-6)
    assert chosen.logsumexp == pytest.approx(logits.double().logsumexp(-1).item(), abs=1e-6)


def test_mixed_rows_are_chosen_each_in_its_own_way() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    mixed = [Draw(s, 17, 0) for s in (SamplingParams(), ANY, SamplingParams(temperature=2.0, top_k=3))]
    together = choose(logits, mixed)
    alone = [choose(logits[i : i + 1], mixed[i : i + 1])[0] for i in range(3)]
    assert [o.token for o in together] == [o.token for o in alone]
    assert together[0].token == logits[0].argmax().item()


def test_rounding_does_not_change_what_is_drawn() -> None:
    # A flat distribution over many tokens, where a cumulative sum would be at the mercy of rounding.
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 4000, generator=generator) * 0.1
    rounded = logits + torch.randn(logits.shape, generator=generator) * 1e-6
    before, after = choose(logits, draws(400)), choose(rounded, draws(400))
    assert [o.token for o in before] == [o.token for o in after]


def test_chance_depends_on_prompt_seed_sample_and_step() -> None:
    logits = torch.zeros(1, 1000)
    keys = [sequence_key(p, s, i) for p in ([1], [1, 2], [2]) for s in (0, 1) for i in (0, 1)]
    tokens = {choose(logits, [Draw(ANY, key, step)])[0].token for key in keys for step in range(3)}
    assert len(set(keys)) == 12
    assert len(tokens) > 30
    assert sequence_key([1, 23], 0, 0) != sequence_key([12, 3], 0, 0)


def test_impossible_tokens_have_no_entropy_and_are_never_drawn() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    (opinion,) = opinions(logits, torch.tensor([2]))
    assert opinion.entropy == pytest.approx(np.log(2), abs=1e-6)
    assert frequencies(logits, ANY, 200)[[1, 3]].sum() == 0


def test_certainty_is_exactly_zero_and_large_logits_keep_their_digits() -> None:
    logits = torch.tensor([[500.0, 0.0], [500.0, 490.0]])
    certain, nearly = opinions(logits, torch.tensor([0, 0]))
    assert certain.entropy == 0.0
    assert nearly.logprob == pytest.approx(-np.log1p(np.exp(-10)), rel=1e-2)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error(broken: float) -> None:
    with pytest.raises(LogprobsError, match="not all numbers"):
        opinions(torch.tensor([[0.0, broken]]), torch.tensor([0]))
