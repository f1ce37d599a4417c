"""How we differ from the papers, and why: the one place that knows, and the page that is made of it.

What an option decides is read off the method's own ``VARIANTS``; here stand the reasons, and what is no
option.
``python -m surerag.methods.differences`` prints the page ``docs/methods/differences.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from surerag.methods.dense_rag import options as dense_rag
from surerag.methods.dynqr import options as dynqr
from surerag.methods.edc2 import options as edc2
from surerag.methods.lazy_rag import options as lazy_rag
from surerag.methods.seper import options as seper


@dataclass(frozen=True, slots=True)
class Difference:
    """A point on which sources differ, or on which we go beyond them.

    Attributes:
        point: What it is about.
        paper: What the paper says; for an option, its value is read off ``VARIANTS``.
        ours: What we do.
        reason: Why.
        official: What the authors' published code does, where there is such code and it differs.
    """

    point: str
    paper: str
    ours: str
    reason: str
    official: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """A method, its classes, and what of it differs.

    Attributes:
        name: The paper's name for it.
        classes: The public classes that have its ``variant``.
        variants: Values of options by variant.
        reasons: Why our value of an option, by the option's name.
        beyond: Differences that are no option of a variant.
    """

    name: str
    classes: tuple[str, ...]
    variants: Mapping[Any, Any]
    reasons: Mapping[str, str]
    beyond: tuple[Difference, ...] = ()

    def values(self) -> dict[str, dict[str, Any]]:
        """Return the value of each option in each variant, for those on which any two differ."""
        rows = {
            name: rules if isinstance(rules, Mapping) else rules._asdict()
            for name, rules in self.variants.items()
        }
        first = next(iter(rows.values()))
        return {
            option: {name: row[option] for name, row in rows.items()}
            for option in first
            if len({repr(row[option]) for row in rows.values()}) > 1
        }


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "lazy_rag": Method(
            "L-RAG",
            ("LazyRAG",),
            lazy_rag.VARIANTS,
            {
                "top_n": "A pipeline's retriever knows how many it is to return; the paper's k is 3.",
                "n_summaries": "The paper asks about one document at a time. In a corpus the "
                "first pass shows "
                "the summaries of the three likeliest documents, since nobody knows the right one.",
            },
            (
                Difference(
                    "tokens that the gate averages over",
                    "n is not stated (Eq. 3); the text also halts at any step above τ",
                    '`gate_tokens=8`, `aggregate="mean"`; `"max"` and `"first"` are offered',
                    "Eq. 3 and 4 decide by a mean; answers are short, and a threshold is calibrated with n.",
                ),
                Difference(
                    "entropy from an API",
                    "full vocabulary",
                    "an interval from the top-k mass; the decision says which point of it was taken",
                    "APIs list only the likeliest tokens, and a guess must not pass for an entropy.",
                ),
                Difference(
                    "gates besides entropy",
                    "future work (VI-F)",
                    "margin, disagreement of sampled answers, functions, `any_of`, `all_of`",
                    "Claude and others give no log-probabilities at all.",
                ),
                Difference(
                    "the threshold",
                    "0.5, 1.0 or 1.5, chosen by hand",
                    "1.0 by default, or a policy from `calibrate` with a promise",
                    "A threshold belongs to a reader; the paper's belong to its own.",
                ),
            ),
        ),
        "seper": Method(
            "SePer",
            ("SePer",),
            seper.VARIANTS,
            {
                "weights": "Repeated samples count twice over in the authors' code (a belief of "
                ".30 comes out "
                "near .16), and raw probabilities of the paper do not sum to one over ten samples.",
                "likelihood": "A product of probabilities prefers short answers; the mean over "
                "tokens does not.",
                "direction": '"Velm" and "Velm on the Orun" entail each other in one direction only.',
                "question_in_entailment": "Answers of one word mean nothing to a judge without "
                "their question.",
                "clusters": "Eq. 4 wants every two members equivalent; grouping by the first "
                "member breaks that "
                "for most judges that are not transitive, and costs no call less.",
                "match": "Answers in other words are often neutral in one direction.",
                "golds": "Golds are forms of one answer: the mean punishes a reader for giving one of them.",
            },
            (
                Difference(
                    "several golds",
                    "their mean (Eq. 10)",
                    "the largest",
                    "An index error makes the authors' own maximum come out wrong with two golds.",
                    'a maximum, computed wrongly; `variant="official"` computes it rightly',
                ),
                Difference(
                    "token probabilities",
                    "the model's",
                    "the model's own at temperature 1, whatever the sampler did",
                    "Probabilities after warping belong to the sampler.",
                    "what the sampler left after warping",
                ),
                Difference(
                    "clusters of the official variant",
                    "–",
                    "one label an answer, never taken away again",
                    "A partition is what Eq. 6 sums over.",
                    "a later cluster can take members from an earlier one",
                ),
            ),
        ),
        "edc2": Method(
            "EDC²-RAG",
            ("ClusterCompressor",),
            edc2.VARIANTS,
            {
                "root": "Algorithm 1 has it so; the order of a retriever need not be that of likeness.",
                "count_root": "τ and Λ are sizes of clusters in the text; both readings fit Table 6.",
                "first_cluster_size": 'The paper\'s 3; its 1 for at most ten documents is `"auto"`.',
                "order": "Algorithm 1 sorts by likeness to the root.",
                "nothing": "Readers refuse in many words; anchored patterns know refusals and "
                "spare sentences "
                "that only contain such words.",
                "all_empty": "Section 4.4 falls back to the originals; the authors' code goes on "
                "with nothing.",
                "pass_below": "A call for a cluster of a few tokens cannot shorten anything.",
                "refuse_longer": "A compression that is longer than its sources is none.",
                "guard": "A compressor invents; the guard removes sentences that no source says.",
            },
            (
                Difference(
                    "documents that were assigned already",
                    "–",
                    "masked out",
                    "A document belongs to one cluster.",
                    "similarity set to 0, so that with negative similarities one is taken twice",
                ),
                Difference(
                    "a cut compression",
                    "–",
                    "its sources go through, with a warning",
                    "Nobody knows what was still to come.",
                ),
                Difference(
                    "two-hop questions",
                    "consensus (C.2)",
                    "consensus, and `bridging` for section 4.3",
                    "The second fact is relevant only beside the first.",
                ),
                Difference(
                    "what is compressed for a choice between two answers (HaluEval)",
                    "the query, unsaid which",
                    "the question",
                    "Compressing for one of the answers would favour it.",
                ),
            ),
        ),
        "dense_rag": Method(
            "DENSE-RAG",
            ("Dense", "ContextRefiner"),
            dense_rag.VARIANTS,
            {
                "stop_rule": "The text stops on either, the algorithm on both; Table 4 supports both.",
                "keep": "Algorithm 3 lets a sufficient context give way to a sufficient one only.",
                "half": "Algorithm 3 drops a chunk only where the answers entail each other.",
            },
            (
                Difference(
                    "answers",
                    "Algorithm 1 starts at r₁",
                    "r₀ … r_k",
                    "Eq. 5 and 6 need the answer from the context as it is.",
                ),
                Difference(
                    "visited chunks",
                    "cleared inside the loop, which then may run for ever",
                    "kept for the whole question",
                    "It has to end; rounds and calls have bounds besides.",
                ),
                Difference(
                    "merging sentences at exactly τ",
                    "≥ in the text, > in the algorithm",
                    "≥",
                    "The text defines it.",
                ),
                Difference(
                    "τ = 0.6",
                    "of UAE-Large-V1",
                    "0.6, and `with_quantile` for other encoders",
                    "Cosines of encoders are not comparable.",
                ),
                Difference(
                    "the judge",
                    "an LLM in words (B.2)",
                    "the reader in words, or an NLI model",
                    "Appendix K says that it can be accelerated so.",
                ),
            ),
        ),
        "dynqr": Method(
            "DynQR",
            ("UncertaintyRewriter",),
            dynqr.VARIANTS,
            {"top_n": "A pipeline's retriever knows how many it is to return; the paper shows five."},
            (
                Difference(
                    "θ",
                    "the best on a sample of 100",
                    '1.2, or `calibrate`: `target="best"` is the paper\'s; `"loss"` and `"budget"` promise',
                    "The best of 100 promises nothing: another sample of 100 gives another θ.",
                ),
                Difference(
                    "length-normalised entropy",
                    "of the samples",
                    "the mean over samples of the mean negative log-probability",
                    "Of one sample it would be log-perplexity.",
                ),
                Difference(
                    "a rewrite that finds nothing new",
                    "–",
                    "not answered from",
                    "The same prompt would only be answered the same.",
                ),
                Difference(
                    "lowest probability",
                    "a probability",
                    "−log of it",
                    "Every metric grows with uncertainty, so that one rule serves all.",
                ),
            ),
        ),
    }
)
"""The five methods, in the papers' names."""


def page() -> str:
    """Return the page "How we differ from the papers, and why", in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# How we differ from the papers, and why"
    yield ""
    yield "Every class below takes `variant`. An option that is left at None takes its value from it; what is"
    yield "set wins. This page is made by `python -m surerag.methods.differences`."
    for method in METHODS.values():
        names = list(method.variants)
        shown = sorted(names, key=lambda name: ("paper", "official", "default").index(name))
        yield ""
        yield f"## {method.name}"
        yield ""
        yield f"{', '.join(f'`{name}`' for name in method.classes)}; variants {_listed(names)}."
        yield ""
        yield f"| option | {' | '.join('ours' if name == 'default' else name for name in shown)} | why ours |"
        yield f"|---|{'---|' * len(shown)}---|"
        for option, values in method.values().items():
            cells = " | ".join(f"`{values[name]!r}`" for name in shown)
            yield f"| `{option}` | {cells} | {method.reasons[option]} |"
        yield ""
        yield "| besides | paper | authors' code | ours | why |"
        yield "|---|---|---|---|---|"
        for one in method.beyond:
            yield f"| {one.point} | {one.paper} | {one.official or '–'} | {one.ours} | {one.reason} |"
    yield ""


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name!r}`".replace("'", '"') for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
