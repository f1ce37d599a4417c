"""Semantic entropy by lm-polygraph: its calculators for samples, pairs and classes, and its estimator.

Only what semantic entropy needs is run: no greedy answer, no attention maps. It takes a batch of prompts at
a time, the samples one after the other, and judges pairs of distinct answers ten at a time.
"""

from __future__ import annotations

import job as jobs
from lm_polygraph import WhiteboxModel
from lm_polygraph.estimators import SemanticEntropy
from lm_polygraph.stat_calculators import (
    SamplingGenerationCalculator,
    SemanticClassesCalculator,
    SemanticMatrixCalculator,
)
from lm_polygraph.utils.deberta import MultilingualDeberta
from lm_polygraph.utils.generation_parameters import GenerationParameters


def main() -> None:
    """Do the job."""
    job, watch = jobs.read()
    model, tokenizer = jobs.load(job["reader"])
    settings = GenerationParameters(temperature=1.0, top_k=0, top_p=1.0, allow_newlines=True)
    reader = WhiteboxModel(model, tokenizer, model_path=job["reader"], generation_parameters=settings)
    nli = MultilingualDeberta(job["nli"], device="cpu")
    sampling, matrix = SamplingGenerationCalculator(job["samples"]), SemanticMatrixCalculator(nli)
    classes, entropy = SemanticClassesCalculator(), SemanticEntropy()

    def entail(stats: dict, texts: list[str]) -> list[float]:
        stats.update(matrix(stats, texts, reader))
        stats.update(classes(stats, texts, reader))
        return entropy(stats).tolist()

    def run() -> None:
        for name in jobs.NAMES:
            prompts = job["prompts"][name]
            for start in range(0, len(prompts), job["batch"]):
                texts = prompts[start : start + job["batch"]]
                stats = watch.time(name, lambda t=texts: sampling({}, t, reader, job["max_tokens"]))
                scores[name] += watch.time("entailment", lambda s=stats, t=texts: entail(s, t))
                distinct[name] += [len(set(answers)) for answers in stats["sample_texts"]]

    scores: dict[str, list[float]] = {name: [] for name in jobs.NAMES}
    distinct: dict[str, list[int]] = {name: [] for name in jobs.NAMES}
    watch.time("total", run)
    watch.time("pairs", lambda: matrix({"sample_texts": job["statements"]}, [], reader))
    jobs.write(
        "lm-polygraph",
        watch,
        scores=scores,
        distinct=distinct,
        logits=jobs.logits_of(model, tokenizer, job["prompts"]["without"][0]),
        judged=sum(len(set(texts)) ** 2 for texts in job["statements"]),
    )


if __name__ == "__main__":
    main()
