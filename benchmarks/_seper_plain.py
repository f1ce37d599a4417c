"""SePer the straightforward way, on the libraries' own calls: one question at a time, one pair at a time.

It shares no code with the package. Everything is asked as often as Algorithm 1 names it; only equal texts
need no judge, which the algorithm's ≡ includes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

Judge = Callable[[str, str], Sequence[float]]
"""Probabilities of contradiction, neutral and entailment that a premise has for a hypothesis."""

_ENTAILMENT = 2


class Sample(NamedTuple):
    """An answer, and the mean log-probability of its tokens."""

    text: str
    log_likelihood: float


def sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, n: int, max_tokens: int
) -> list[Sample]:
    """Sample n answers to one prompt with ``generate(num_return_sequences=n)``."""
    encoded = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode():
        found = model.generate(
            **encoded,
            do_sample=True,
            top_k=0,
            num_return_sequences=n,
            max_new_tokens=max_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
    answers = found.sequences[:, encoded["input_ids"].shape[1] :]
    logs = torch.stack(found.logits, dim=1).log_softmax(-1).gather(-1, answers[..., None])[..., 0]
    samples = []
    for row, values in zip(answers.tolist(), logs.tolist(), strict=True):
        length = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
        text = tokenizer.decode(row[:length], skip_special_tokens=True).strip()
        samples.append(Sample(text, sum(values[:length]) / length if length else 0.0))
    return samples


@dataclass
class PairwiseNLI:
    """Judges one pair at a time.

    Attributes:
        model: The classifier; its labels are contradiction, neutral, entailment.
        tokenizer: Its tokenizer.
        judged: Pairs so far.
        seconds: Time they took.
        clock: Tells the seconds.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    clock: Callable[[], float] = time.perf_counter
    judged: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __call__(self, premise: str, hypothesis: str) -> list[float]:
        """Judge a pair."""
        started = self.clock()
        encoded = self.tokenizer(premise, hypothesis, return_tensors="pt")
        with torch.inference_mode():
            found: list[float] = self.model(**encoded).logits[0].double().softmax(-1).tolist()
        self.judged += 1
        self.seconds += self.clock() - started
        return found


def belief(
    samples: Sequence[Sample], question: str, golds: Sequence[str], judge: Judge, kernel: str
) -> float:
    """SePer of one context: each distinct answer weighs as likely as it is; the best gold answer counts.

    Args:
        samples: The sampled answers.
        question: Put before both statements of a pair.
        golds: Gold answers.
        judge: The entailment model.
        kernel: ``"soft"`` or ``"hard"``.
    """
    weights = [
        math.exp(one.log_likelihood) if one.text not in [s.text for s in samples[:at]] else 0.0
        for at, one in enumerate(samples)
    ]

    def probabilities(first: str, second: str) -> Sequence[float]:
        return judge(f"{question} {first}", f"{question} {second}")

    texts = [one.text for one in samples]
    if kernel == "soft":
        kernels = [[_degree(text, gold, probabilities) for gold in golds] for text in texts]
    else:
        clusters = _clusters(texts, probabilities)
        matched = {
            members[0]: [_matches(texts[members[0]], gold, probabilities) for gold in golds]
            for members in clusters
        }
        first = {member: members[0] for members in clusters for member in members}
        kernels = [matched[first[at]] for at in range(len(texts))]
    total = sum(weights)
    return max(
        sum(w * row[gold] for w, row in zip(weights, kernels, strict=True)) / total
        for gold in range(len(golds))
    )


def _degree(answer: str, gold: str, judge: Judge) -> float:
    if not answer or answer == gold:
        return float(answer == gold)
    return max(judge(answer, gold)[_ENTAILMENT], judge(gold, answer)[_ENTAILMENT])


def _clusters(texts: Sequence[str], judge: Judge) -> list[list[int]]:
    """Put each answer into the first cluster whose first member it entails and is entailed by."""
    clusters: list[list[int]] = []
    for at, text in enumerate(texts):
        for members in clusters:
            if _equivalent(texts[members[0]], text, judge):
                members.append(at)
                break
        else:
            clusters.append([at])
    return clusters


def _equivalent(first: str, second: str, judge: Judge) -> bool:
    if first == second or not first or not second:
        return first == second
    return _label(judge(first, second)) == _label(judge(second, first)) == _ENTAILMENT


def _matches(answer: str, gold: str, judge: Judge) -> float:
    """Whether an answer and a gold answer neither contradict each other nor are both neutral."""
    if not answer or answer == gold:
        return float(answer == gold)
    labels = {_label(judge(answer, gold)), _label(judge(gold, answer))}
    return float(0 not in labels and labels != {1})


def _label(probabilities: Sequence[float]) -> int:
    return max(range(3), key=lambda label: probabilities[label])
