"""Choice of tokens: the right distribution, the same choice in every batch, exact numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from surerag.errors import LogprobsError
from surerag.messages import SamplingParams
from surerag.readers.local.sampling import Draw, choose, score_tokens, sequence_key

ANY = SamplingParams(temperature=1.0)


def draws(count: int, sampling: SamplingParams = ANY) -> list[Draw]:
    return [Draw(sampling, sequence_key([1, 2, 3], seed=0, sample=sample), step=0) for sample in range(count)]


def frequencies(logits: torch.Tensor, sampling: SamplingParams, count: int = 4000) -> np.ndarray:
    chosen = choose(logits.expand(count, -1), draws(count, sampling))
    return np.bincount([one.token for one in chosen], minlength=logits.shape[-1])


@pytest.mark.parametrize("vocabulary", [7, 700])
@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_tokens_come_as_often_as_the_model_says(vocabulary: int, temperature: float) -> None:
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    expected = (logits / temperature).softmax(-1)[0].double().numpy()
    observed = frequencies(logits, SamplingParams(temperature=temperature))
    common = expected * observed.sum() >= 5
    seen = np.append(observed[common], observed[~common].sum() + 1e-9)
    hoped = np.append(expected[common], expected[~common].sum() + 1e-12)
    assert chisquare(seen, hoped * seen.sum() / hoped.sum()).pvalue > 1e-4


def test_numbers_are_the_models_own_whatever_the_sampling() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1)) * 4
    (chosen,) = choose(logits, draws(1, SamplingParams(temperature=3.0)))
    logs = logits.double().log_softmax(-1)[0]
    assert chosen.logprob == pytest.approx(logs[chosen.token].item(), abs=1e-6)
    assert chosen.entropy == pytest.approx(-(logs.exp() * logs).sum().item(), abs=1e-6)
    assert chosen.logsumexp == pytest.approx(logits.double().logsumexp(-1).item(), abs=1e-6)


def test_mixed_rows_are_chosen_each_in_its_own_way() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    mixed = [Draw(s, 17, 0) for s in (SamplingParams(), ANY, SamplingParams(temperature=2.0))]
    together = choose(logits, mixed)
    assert [one.token for one in together] == [
        choose(logits[i : i + 1], mixed[i : i + 1])[0].token for i in range(3)
    ]
    assert together[0].token == logits[0].argmax().item()


def test_rounding_does_not_change_a_draw() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 4000, generator=generator) * 0.1
    rounded = logits + torch.randn(logits.shape, generator=generator) * 1e-6
    before, after = choose(logits, draws(400)), choose(rounded, draws(400))
    assert [one.token for one in before] == [one.token for one in after]


def test_a_draw_depends_on_prompt_seed_sample_and_step() -> None:
    keys = [sequence_key(p, s, i) for p in ([1], [1, 2], [2]) for s in (0, 1) for i in (0, 1)]
    tokens = {choose(torch.zeros(1, 1000), [Draw(ANY, k, t)])[0].token for k in keys for t in range(3)}
    assert len(set(keys)) == 12
    assert len(tokens) > 30
    assert sequence_key([1, 23], 0, 0) != sequence_key([12, 3], 0, 0)


@pytest.mark.parametrize("temperature", [1e-38, 1e-45, 1e-9])
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float) -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(2)) * 9
    chosen = choose(logits, draws(3, SamplingParams(temperature=temperature)))
    assert [one.token for one in chosen] == logits.argmax(-1).tolist()


def test_impossible_tokens_and_certainty_are_exact() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf], [500.0, 0.0, 0.0, 0.0]])
    half, certain = score_tokens(logits, torch.tensor([2, 0]))
    assert half.entropy == pytest.approx(np.log(2), abs=1e-6)
    assert certain.entropy == 0.0
    assert frequencies(logits[:1], ANY, 200)[[1, 3]].sum() == 0


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error(broken: float) -> None:
    with pytest.raises(LogprobsError, match="not all numbers"):
        score_tokens(torch.tensor([[0.0, broken]]), torch.tensor([0]))
