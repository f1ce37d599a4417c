"""Semantic entropy by uqlm: its generation through a LangChain chat model, its clusters and its scores.

The chat model is the least that uqlm takes: it asks for one answer at a time. uqlm compares a first answer
with further samples; here they are N together. Its pairs get the question, not the whole prompt, which would
not fit the classifier's window.
"""

from __future__ import annotations

import asyncio
from itertools import combinations
from typing import Any

import job as jobs
import torch
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from uqlm import SemanticEntropy


class Local(BaseChatModel):
    """A model of transformers, one answer a call, with its log-probabilities as uqlm reads them."""

    model: Any
    tokenizer: Any
    max_tokens: int
    temperature: float = 1.0
    logprobs: bool = True

    @property
    def _llm_type(self) -> str:
        return "local"

    def _generate(self, messages: list[Any], stop: Any = None, run_manager: Any = None, **_: Any) -> Any:
        encoded = self.tokenizer(messages[-1].content, return_tensors="pt")
        with torch.no_grad():
            found = self.model.generate(
                **encoded,
                do_sample=True,
                top_k=0,
                temperature=self.temperature,
                max_new_tokens=self.max_tokens,
                return_dict_in_generate=True,
                output_logits=True,
            )
        ids = found.sequences[0, encoded["input_ids"].shape[1] :].tolist()
        logs = torch.cat(found.logits).log_softmax(-1)[range(len(ids)), ids].tolist()
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        message = AIMessage(
            content=self.tokenizer.decode(ids, skip_special_tokens=True).strip(),
            response_metadata={
                "logprobs_result": [
                    {"token": token, "logprob": value, "top_logprobs": []}
                    for token, value in zip(tokens, logs, strict=True)
                ]
            },
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[Any], *arguments: Any, **_: Any) -> Any:
        # Threads would only get into each other's way: there is one model.
        return self._generate(messages)


def main() -> None:
    """Do the job."""
    job, watch = jobs.read()
    model, tokenizer = jobs.load(job["reader"])
    llm = Local(model=model, tokenizer=tokenizer, max_tokens=job["max_tokens"])
    scorer = SemanticEntropy(
        llm=llm, nli_model_name=job["nli"], device=torch.device("cpu"), use_best=False, return_responses="raw"
    )

    def answers(prompts: list[str]) -> tuple[list[str], list[list[str]]]:
        async def both() -> tuple[list[str], list[list[str]]]:
            first = await scorer.generate_original_responses(prompts)
            return first, await scorer.generate_candidate_responses(prompts, job["samples"] - 1)

        return asyncio.run(both())

    def entail(first: list[str], others: list[list[str]]) -> list[float]:
        found = scorer.score(
            prompts=job["questions"],
            responses=first,
            sampled_responses=others,
            logprobs_results=scorer.logprobs,
            sampled_logprobs_results=scorer.multiple_logprobs,
            show_progress_bars=False,
        )
        return [float(value) for value in found.data["tokenprob_entropy_values"]]

    def run() -> None:
        for name in jobs.NAMES:
            first, others = watch.time(name, lambda n=name: answers(job["prompts"][n]))
            scores[name] = watch.time("entailment", lambda f=first, o=others: entail(f, o))
            distinct[name] = [len({one, *more}) for one, more in zip(first, others, strict=True)]

    def pairs() -> None:
        for texts in job["statements"]:
            scorer.nli.get_nli_results_batch(list(combinations(texts, 2)))

    scores: dict[str, list[float]] = {}
    distinct: dict[str, list[int]] = {}
    watch.time("total", run)
    scorer.nli.probabilities.clear()
    watch.time("pairs", pairs)
    jobs.write(
        "uqlm",
        watch,
        scores=scores,
        distinct=distinct,
        logits=jobs.logits_of(model, tokenizer, job["prompts"]["without"][0]),
        judged=len(scorer.nli.probabilities),
    )


if __name__ == "__main__":
    main()
