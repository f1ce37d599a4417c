"""Every prompt in the project: named, with its source, rendered so that document text stays data.

The wording is ours; structure and slots follow the cited papers. A template names its slots in
single braces. Rendering is one pass over the template: what is filled in is never looked at again,
so braces, markup or further slots inside a document stand in the prompt exactly as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from surerag.errors import PromptError

_SLOT = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A named prompt with slots such as ``{question}``.

    Attributes:
        name: Stable name, as used by ``get_prompts`` and ``update_prompts`` of the integrations.
        text: The template. ``{{`` and ``}}`` stand for literal braces.
        source: Paper and section the structure comes from.

    Raises:
        PromptError: If the text has a lone brace, which is almost always a mistyped slot.
    """

    name: str
    text: str
    source: str = "yours"
    slots: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        remainder = _SLOT.sub("", self.text)
        if "{" in remainder or "}" in remainder:
            raise PromptError(
                f"prompt {self.name!r} has a brace that belongs to no slot",
                hint="write a slot as {question}, and a literal brace as {{ or }}",
            )
        names = frozenset(m.group(1) for m in _SLOT.finditer(self.text) if m.group(1))
        object.__setattr__(self, "slots", names)

    def render(self, **values: str) -> str:
        """Fill every slot once.

        Args:
            **values: One string for each slot; no more, no fewer.

        Returns:
            The prompt's text.

        Raises:
            PromptError: If a slot has no value, or a value no slot.

        Example:
            >>> PromptTemplate("greet", "Hello {name}").render(name="{question}")
            'Hello {question}'
        """
        given = frozenset(values)
        if given != self.slots:
            raise PromptError(
                f"prompt {self.name!r} takes {sorted(self.slots)}, got {sorted(given)}",
                hint="give each slot of the template exactly one value",
            )
        return _SLOT.sub(lambda match: _fill(match, values), self.text)

    def require(self, *slots: str) -> PromptTemplate:
        """Return this template if it has exactly these slots.

        Raises:
            PromptError: If slots are missing or unknown.
        """
        if self.slots != frozenset(slots):
            raise PromptError(
                f"prompt {self.name!r} must have the slots {sorted(slots)}, has {sorted(self.slots)}",
                hint="keep the slots of the prompt that this one replaces",
            )
        return self


def _fill(match: re.Match[str], values: dict[str, str]) -> str:
    name = match.group(1)
    return values[name] if name else match.group(0)[0]


def format_passages(texts: Iterable[str]) -> str:
    r"""Number passages, one after the other, as every prompt here shows them.

    Example:
        >>> format_passages(["Ada was born in Velm.", "Velm lies on the Orun."])
        '[1] Ada was born in Velm.\n[2] Velm lies on the Orun.'
    """
    return "\n".join(f"[{number}] {text}" for number, text in enumerate(texts, start=1))


CLOSED_BOOK = PromptTemplate(
    "closed_book",
    "Answer the question.\nQuestion: {question}\nAnswer:",
    "L-RAG, section IV-D (baseline without retrieval)",
)
FROM_CONTEXT = PromptTemplate(
    "from_context",
    "Context: {context}\nAnswer the question from the context above.\nQuestion: {question}\nAnswer:",
    "L-RAG, section III-D (first pass); also standard retrieval",
)
FROM_CONTEXT_AND_DETAILS = PromptTemplate(
    "from_context_and_details",
    "Context: {context}\nAdditional details:\n{details}\n"
    "Answer the question from the context above.\nQuestion: {question}\nAnswer:",
    "L-RAG, section III-D (second pass)",
)
SUMMARIZE = PromptTemplate(
    "summarize",
    "Summarize the document in at most two sentences. Return only the summary.\nDocument: {document}",
    "L-RAG, section III-A (a summary that a model writes once)",
)
SEPER_CLOSED_BOOK = PromptTemplate(
    "seper_closed_book",
    "Answer the question from your own knowledge. Give only the answer.\nQuestion: {question}",
    "SePer, appendix D.5 (naive)",
)
SEPER_FROM_PASSAGES = PromptTemplate(
    "seper_from_passages",
    "Answer the question from the given documents. Give only the answer.\n"
    "Documents:\n{passages}\nQuestion: {question}",
    "SePer, appendix D.5 (RAG)",
)
DENSE_ANSWER = PromptTemplate(
    "dense_answer",
    "Answer the question {question} from the context. Give a short answer with few words only.\n"
    "Context:\n{passages}",
    "DENSE-RAG, appendix B.4",
)
REPHRASE = PromptTemplate(
    "rephrase",
    "Rewrite the text with another sentence structure and the same meaning. "
    "Return only the rewritten text.\nText: {passage}",
    "DENSE-RAG, appendix B.1",
)
ENTAILMENT = PromptTemplate(
    "entailment",
    "Two possible answers to the question {question}\n"
    "Answer 1: {premise}\nAnswer 2: {hypothesis}\n"
    "Does answer 1 entail answer 2? Reply only with entailment, contradiction or neutral.",
    "DENSE-RAG, appendix B.2",
)
SUFFICIENT = PromptTemplate(
    "sufficient",
    "Context:\n{passages}\nQuestion: {question}\n"
    "Does the context contain enough to answer the question? Reply only with yes or no.",
    "DENSE-RAG, appendix B.3",
)
NOTHING_TO_EXTRACT = "No content to extract"
EXTRACT = PromptTemplate(
    "extract",
    "{examples}Extract from the documents only what is relevant to the question, "
    f"without inferring anything. If nothing is relevant, reply: {NOTHING_TO_EXTRACT}\n"
    "Question: {question}\nDocuments:\n{passages}\nExtracted:",
    "EDC²-RAG, section 4.3",
)
DYNQR_ANSWER = PromptTemplate(
    "dynqr_answer",
    "Refer to the documents and answer the question with one entity and no explanation.\n"
    "Documents:\n{passages}\nQuestion: {question}\nThe answer is:",
    "DynQR, appendix C (answering with retrieval)",
)
REWRITE = PromptTemplate(
    "rewrite",
    "Rewrite the query so that a search finds what it asks for. Return only the rewritten query.\n"
    "Query: {query}",
    "DynQR, appendix C (query rewriting)",
)
REWRITE_IN_CONVERSATION = PromptTemplate(
    "rewrite_in_conversation",
    "Rewrite the query so that it can be understood without the conversation above, and a search finds what "
    "it asks for. Return only the rewritten query.\nQuery: {query}",
    "DynQR, appendix C (query rewriting), for a query that leans on a conversation",
)
FACT_CHECK = PromptTemplate(
    "fact_check",
    "{examples}Collect from the documents what supports, refutes or explains the statement. Stay close to "
    "their words, keep it short, and conclude nothing from it. "
    f"If the documents hold nothing about the statement, reply: {NOTHING_TO_EXTRACT}\n"
    "Statement: {statement}\nDocuments:\n{passages}\nExtracted:",
    "EDC²-RAG, appendix C.1 (compression for hallucination detection)",
)
ANSWER_WITH_EVIDENCE = PromptTemplate(
    "answer_with_evidence",
    "{examples}Answer the question from the documents, and quote the evidence for your answer.\n"
    "Question: {question}\nDocuments:\n{passages}\nAnswer:",
    "EDC²-RAG, appendix C.2 (summarization)",
)
CONSENSUS = PromptTemplate(
    "consensus",
    "Several answers to one question follow. Compare them, put together those that mean the same, and "
    "select the answer that most of them give and that does not contradict itself. Among equals, take the "
    "most specific and shortest one.\n"
    "Reply in two lines:\nReasoning: one sentence on your choice\nSelected_Answer: the answer alone\n"
    "Answers:\n{answers}\nQuestion: {question}",
    "EDC²-RAG, appendix C.2 (response)",
)
JUDGE_STATEMENT = PromptTemplate(
    "judge_statement",
    "Check every part of the statement against the documents, some of which may support it, refute it, or "
    "only explain it. It is Nonfactual if any part of it is wrong; otherwise, or where it claims nothing, it "
    "is Factual.\n"
    "Reply in two lines:\nReasoning: why, citing documents by number as in [1]\n"
    "Answer: Factual or Nonfactual\n"
    "Statement: {statement}\nDocuments:\n{passages}",
    "EDC²-RAG, section 6.2 and appendix C.1.2 (evaluation)",
)
