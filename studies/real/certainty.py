"""Which answers of plain RAG are wrong? What the reader's certainty tells, beside what asking again tells.

The system ``plain`` notes the log-probability and the entropy of every token of its answer, so that any
measure can be computed from a run. The system ``asked`` answers alike. Then it asks the reader whether the
answer is right, asks for a number, and draws five samples. These requests begin alike, so that a local reader
reads the passages once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from studies.real.systems import MAX_TOKENS, Meter
from surerag import Passage, SamplingParams, Services
from surerag.drivers import run_many
from surerag.effects import Generate, Program, perform
from surerag.evaluation import EvaluationAnswer, Question
from surerag.evaluation.systems import System
from surerag.measures import discrete_semantic_entropy
from surerag.messages import Generation, Message, Prompt, TokenTrace
from surerag.methods.shared import meaning_clusters
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.retrieval import PassageIndex

if TYPE_CHECKING:
    from studies.real.run import Setting

N_SAMPLES = 5
ARE_YOU_SURE = "Is your answer right? Reply only with yes or no."
HOW_SURE = (
    "How likely is it that your answer is right? "
    "Reply only with a number from 0 (surely wrong) to 100 (surely right)."
)

SHORT = SamplingParams(max_tokens=3, trace="logprobs")
SAMPLED = SamplingParams(n=N_SAMPLES, temperature=1.0, max_tokens=MAX_TOKENS, trace="none")


def certainty(setting: Setting) -> dict[str, System]:
    """Answer from passages, and note all that may tell whether the answer is right."""
    reader, encoder, data, k, _ = setting
    index = PassageIndex.from_passages(data.corpus, encoder, progress=True) if data.corpus else None
    own = {item.text: item.passages for item in data.items}
    answers: dict[str, Generation] = {}

    def prompt_of(question: str) -> str:
        passages: Sequence[Passage] = own[question] if index is None else index.retrieve(question, k)
        context = format_passages(passage.text for passage in passages)
        return str(FROM_CONTEXT.render(context=context, question=question))

    def answered(meter: Meter, question: str) -> Generation:
        if question not in answers:
            answers[question] = meter.ask(prompt_of(question), trace="entropy")
        return answers[question]

    def plain(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        answer = answered(meter, question.text)
        scores = {"cut": float(answer.is_cut)} | noted(answer.trace)
        return EvaluationAnswer(answer.text, (), meter.usage, answer.finish, scores=scores)

    def asked(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        answer = answered(meter, question.text)
        scores = noted(answer.trace)
        prompt = prompt_of(question.text)
        turns = (Message("user", prompt), Message("assistant", answer.text))
        sure: Prompt = (*turns, Message("user", ARE_YOU_SURE))
        number: Prompt = (*turns, Message("user", HOW_SURE))
        programs = [_ask([sure], SHORT), _ask([number], SHORT), _ask([prompt], SAMPLED)]
        [doubt], [told], samples = run_many(programs, Services(reader=reader))
        for one in (doubt, told, *samples):
            meter.counted(one)
        clusters = meaning_clusters([one.text for one in samples])
        same = meaning_clusters([answer.text, *(one.text for one in samples)])
        scores |= {
            "are you sure?": doubt_of(doubt),
            "a number in words": 1 - number_in(told.text),
            "disagreement of 5 samples": 1 - same[1:].count(same[0]) / N_SAMPLES,
            "semantic entropy of 5 samples": discrete_semantic_entropy(clusters),
        }
        spent = {"are you sure?": doubt, "a number in words": told, "5 samples": samples[0]}
        scores |= {f"tokens, {name}": float(one.prompt_tokens) for name, one in spent.items()}
        for name, replies in zip(spent, ([doubt], [told], samples), strict=True):
            scores[f"tokens, {name}"] += sum(one.completion_tokens for one in replies)
        return EvaluationAnswer(answer.text, (), meter.usage, answer.finish, scores=scores)

    named = {"plain": plain, "asked": asked}
    return {name: System(name, f, {"system": name, "reader": reader.name}) for name, f in named.items()}


def _ask(prompts: Sequence[Prompt], sampling: SamplingParams) -> Program[list[Generation]]:
    [answers] = yield from perform(Generate(prompts, sampling))
    return answers


def noted(trace: TokenTrace | None) -> dict[str, float]:
    """Return the log-probability and the entropy of each token by names such as ``entropy 1``."""
    if trace is None or trace.entropy is None:
        return {}
    scores = {f"logprob {at}": value for at, value in enumerate(trace.logprobs, 1)}
    return scores | {f"entropy {at}": value for at, value in enumerate(trace.entropy.middle, 1)}


def steps_of(scores: Mapping[str, float], name: str) -> list[float]:
    """Return the values that :func:`noted` wrote by a name, in the order of the tokens."""
    found: list[float] = []
    while (value := scores.get(f"{name} {len(found) + 1}")) is not None:
        found.append(value)
    return found


def doubt_of(reply: Generation) -> float:
    """Return one minus the probability of yes, from a reply's first token.

    Example:
        >>> trace = TokenTrace(("Yes",), (math.log(0.75),))
        >>> round(doubt_of(Generation("Yes", trace=trace)), 2)
        0.25
    """
    if reply.trace is None or not len(reply.trace):
        return 0.5
    first = math.exp(reply.trace.logprobs[0])
    return 1 - first if reply.text.strip().lower().startswith("yes") else first


def number_in(text: str) -> float:
    """Return the first number of a reply as a share of 100; 0.5 where there is none.

    Example:
        >>> number_in("About 95 %"), number_in("very")
        (0.95, 0.5)
    """
    found = re.search(r"\d+(?:\.\d+)?", text)
    return min(float(found.group()), 100.0) / 100 if found else 0.5
