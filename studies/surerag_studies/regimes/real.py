"""Figures of a real reader's records, beside which the regimes are shown.

Llama-3.1-8B-Instruct on 500 questions each of NQ and TriviaQA, without retrieval and with one by BM25, as
recorded by s-nlp/AdaRAGUE ("Adaptive Retrieval Without Self-Knowledge? Bringing Uncertainty Back Home",
arXiv 2501.12835; MIT). An answer is right where a gold form stands in it after the usual normalisation. Doubt
is the perplexity of SeaKR's answer to the same question, right and wrong that of another prompt's.
"""

from __future__ import annotations

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import Estimate, wilson_interval
from surerag_studies.regimes.measuring import Figures

NQ = Figures(
    name="NQ",
    n=500,
    signal="perplexity",
    without=wilson_interval(224, 500),
    with_=wilson_interval(245, 500),
    helps=wilson_interval(78, 500),
    hurts=wilson_interval(57, 500),
    surely_wrong=wilson_interval(112, 250),
    wrong=Estimate(0.635, 0.585, 0.682),
    benefit=Estimate(0.562, 0.492, 0.629),
    gain=PairedDifference(0.007, -0.016, 0.030, -0.012),
)

TRIVIA_QA = Figures(
    name="TriviaQA",
    n=500,
    signal="perplexity",
    without=wilson_interval(319, 500),
    with_=wilson_interval(308, 500),
    helps=wilson_interval(50, 500),
    hurts=wilson_interval(61, 500),
    surely_wrong=wilson_interval(54, 250),
    wrong=Estimate(0.726, 0.677, 0.768),
    benefit=Estimate(0.614, 0.530, 0.691),
    gain=PairedDifference(0.013, -0.008, 0.034, -0.005),
)

REAL = (NQ, TRIVIA_QA)
