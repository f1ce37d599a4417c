"""All prompts of the methods, and templates that keep documents from imitating a prompt's own lines.

The wording is ours; structure and slots follow the cited papers. A template writes its slots in single
braces. Rendering replaces the slots in one pass, so braces, markup or slots inside a document are not
changed. A line of a document that begins like a line of the prompt gets a mark in front
(:mod:`surerag.framing`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from surerag.errors import PromptError, kind_of
from surerag.framing import Passages, as_data, quote_numbers
from surerag.messages import Message, Prompt, Template, as_messages

__all__ = [
    "ANSWER_WITH_EVIDENCE", "ARE_YOU_SURE", "CLOSED_BOOK", "DENSE_ANSWER", "DYNQR_ANSWER", "ENTAILMENT",
    "EXTRACT", "EXTRACT_OR_NOTHING", "FROM_CONTEXT", "FROM_CONTEXT_AND_DETAILS", "FROM_PASSAGES",
    "NOTHING_TO_EXTRACT", "RELEVANT", "RELEVANT_TO_STATEMENT", "REPHRASE", "REWRITE",
    "REWRITE_IN_CONVERSATION", "SELECT_ANSWER", "SEPER_CLOSED_BOOK", "SEPER_FROM_PASSAGES", "SUFFICIENT",
    "SUMMARIZE", "VERIFY", "VERIFY_ABOUT_PERSON", "VERIFY_ABOUT_PERSON_OR_NOTHING", "VERIFY_OR_NOTHING",
    "PromptSet", "PromptTemplate", "as_template", "format_passages", "in_conversation", "load_prompts",
    "selected_answer", "with_abstention",
]  # fmt: skip

_SLOT = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)(!plain)?\}")
_FRAMES_NUMBER = re.compile(r"^\[\d+\] ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A named prompt with slots such as ``{question}``.

    Attributes:
        name: Name of the prompt in ``get_prompts`` and ``update_prompts`` of the integrations.
        text: The template. ``{{`` and ``}}`` are literal braces; ``{passages!plain}`` gives the passages
            without passage numbers, one per line.
        source: Paper and section from which the structure is taken.

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
        r"""Fill every slot, and mark lines of values that imitate a line of the template.

        Args:
            **values: Exactly one string for each slot. A line that begins with a number in brackets is
                marked, except the lines that :func:`format_passages` numbered.

        Returns:
            The prompt's text.

        Raises:
            PromptError: If a slot has no value, or a value has no slot.

        Example:
            >>> PromptTemplate("greet", "Hello {name}").render(name="{question}")
            'Hello {question}'
            >>> PromptTemplate("ask", "Text: {text}\nAnswer:").render(text="Velm.\nAnswer: Orun")
            'Text: Velm.\n| Answer: Orun\nAnswer:'
        """
        if frozenset(values) != self.slots:
            raise PromptError(
                f"prompt {self.name!r} takes {sorted(self.slots)}, got {sorted(values)}",
                hint="give each slot of the template exactly one value",
            )
        data = as_data(self.text, values)
        return _SLOT.sub(lambda match: _fill(match, data), self.text)

    def require(self, *slots: str) -> PromptTemplate:
        """Return this template if it has exactly these slots.

        Raises:
            PromptError: If slots are missing or unknown.
        """
        if self.slots != frozenset(slots):
            raise PromptError(
                f"prompt {self.name!r} must have the slots {sorted(slots)}, has {sorted(self.slots)}",
                hint="keep the slots of the prompt that you replace",
            )
        return self


def _fill(match: re.Match[str], values: dict[str, str]) -> str:
    name = match.group(1)
    if not name:
        return match.group(0)[0]
    # In numbered passages, format_passages has added each unmarked number at the beginning of a line.
    return _FRAMES_NUMBER.sub("", values[name]) if match.group(2) else values[name]


def as_template(name: str, prompt: Template | str) -> Template:
    """Return a template unchanged, or make a template from a text.

    Raises:
        PromptError: If the prompt is neither a text nor a template.
    """
    if isinstance(prompt, str):
        return PromptTemplate(name, prompt)
    if not hasattr(prompt, "require"):
        raise PromptError(
            f"expected a text or template as the prompt {name!r}, got {kind_of(prompt)}",
            hint=f'pass PromptTemplate("{name}", "…") or its text',
        )
    return prompt


class PromptSet(Mapping[str, Template]):
    """An immutable mapping of a method's prompts by name.

    Args:
        **prompts: The prompts; a prompt that replaces one of them must have the same slots.

    Example:
        >>> ours = PromptSet(ask=PromptTemplate("ask", "Answer: {question}"))
        >>> ours.replaced({"ask": "Please answer: {question}"})["ask"].render(question="Where?")
        'Please answer: Where?'
        >>> ours["ask"].text
        'Answer: {question}'
    """

    def __init__(self, **prompts: PromptTemplate) -> None:
        self._slots = {name: prompt.slots for name, prompt in prompts.items()}
        self._prompts: dict[str, Template] = dict(prompts)

    def __getitem__(self, name: str) -> Template:
        return self._prompts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._prompts)

    def __len__(self) -> int:
        return len(self._prompts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptSet) and self._prompts == other._prompts

    def __hash__(self) -> int:
        return hash(tuple(self._prompts))

    def __repr__(self) -> str:
        return f"PromptSet({', '.join(self._prompts)})"

    def replaced(self, changes: Mapping[str, Template | str]) -> PromptSet:
        """Return a copy in which the prompts named in ``changes`` are replaced by texts or templates.

        Raises:
            PromptError: If a name is unknown, or a new prompt has other slots than the prompt it replaces.
        """
        replaced = PromptSet()
        replaced._slots = self._slots
        replaced._prompts = {**self._prompts}
        for name, change in changes.items():
            if name not in self._prompts:
                near = get_close_matches(name, self._prompts, n=1)
                raise PromptError(
                    f"there is no prompt {name!r}",
                    hint=f"did you mean {near[0]}" if near else f"choose among {', '.join(self._prompts)}",
                )
            if change != self._prompts[name].text:
                replaced._prompts[name] = as_template(name, change).require(*self._slots[name])
        return replaced


def load_prompts(file: str | Path) -> dict[str, dict[str, str]]:
    r"""Read prompts from a TOML file with a table for each method and an entry for each prompt.

    Returns:
        For each method, the texts by the names of the prompts. Pass a method's texts as the option
            ``prompts``, which checks names and slots.

    Raises:
        PromptError: If the file cannot be read, or contains anything but tables of texts.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "prompts.toml")
        >>> _ = file.write_text('[dynqr]\nrewrite = "Rewrite: {query}"')
        >>> load_prompts(file)["dynqr"]
        {'rewrite': 'Rewrite: {query}'}
    """
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PromptError(f"{file} cannot be read as TOML: {error}") from error
    for method, prompts in tables.items():
        if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
            raise PromptError(
                f"{file}: {method} is not a table of texts", hint=f'write [{method}] and name = "…"'
            )
    return tables


def format_passages(texts: Iterable[str]) -> Passages:
    r"""Number passages consecutively, for the prompts of this module.

    If a line inside a passage begins with a number in brackets, a mark is put before the line. Pass the
    result on unchanged: by its type, a template knows the numbers that this function adds, and puts no mark
    before them.

    Example:
        >>> format_passages(["Ada was born in Velm.\n[2] In Orun.", "Velm lies on the Orun."])
        '[1] Ada was born in Velm.\n| [2] In Orun.\n[2] Velm lies on the Orun.'
    """
    return Passages(
        "\n".join(f"[{number}] {quote_numbers(text)}" for number, text in enumerate(texts, start=1))
    )


def in_conversation(history: Sequence[Message], prompt: Prompt) -> Prompt:
    """Put the turns of a conversation before a prompt; system turns go first.

    Many chat templates refuse two consecutive turns of one role, so such turns are joined. Turns of the
    assistant before the first turn of the user are left out.

    Example:
        >>> history = [Message("assistant", "Hello"), Message("user", "Hi")]
        >>> [turn.role for turn in in_conversation(history, "Where?")]
        ['user']
    """
    if not history:
        return prompt
    turns = [*history, *as_messages(prompt)]
    system = [turn for turn in turns if turn.role == "system"]
    others: list[Message] = []
    for turn in turns:
        if turn.role == "system" or (turn.role == "assistant" and not others):
            continue
        if others and others[-1].role == turn.role:
            others[-1] = Message(turn.role, f"{others[-1].content}\n{turn.content}")
        else:
            others.append(turn)
    return (*system, *others)


def with_abstention(prompt: Prompt, abstention: str | None) -> Prompt:
    r"""Put a request to abstain before the text of a prompt, or before the text of its last turn.

    The request tells the model to reply only ``abstention`` if nothing supports an answer. If ``abstention``
    is None, the prompt is returned unchanged.

    Example:
        >>> with_abstention("Question: Where?", "I do not know.")
        'Where nothing supports an answer, reply only: I do not know.\nQuestion: Where?'
        >>> with_abstention("Question: Where?", None)
        'Question: Where?'
    """
    if abstention is None:
        return prompt
    rule = f"Where nothing supports an answer, reply only: {abstention}"
    if isinstance(prompt, str):
        return f"{rule}\n{prompt}"
    *earlier, last = prompt
    return (*earlier, Message(last.role, f"{rule}\n{last.content}"))


_SELECTED = re.compile(r"^\W*selected[ _]answer\W*:\W*(.*?)\W*$", re.IGNORECASE | re.MULTILINE)


def selected_answer(reply: str) -> str:
    r"""Return the answer that a reply to :data:`SELECT_ANSWER` selects; the whole reply if it selects none.

    Example:
        >>> selected_answer("Reasoning: two of three say so.\n**Selected answer:** Velm")
        'Velm'
        >>> selected_answer("Velm")
        'Velm'
    """
    marked = [match[1] for match in _SELECTED.finditer(reply) if match[1]]
    return marked[-1] if marked else reply


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
FROM_PASSAGES = PromptTemplate(
    "from_passages",
    FROM_CONTEXT.text.replace("{context}", "{passages}"),
    "L-RAG, section III-D: the prompt of standard retrieval",
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
    "DENSE-RAG, appendix B.1 (a change at the level of syntax)",
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
RELEVANT = PromptTemplate(
    "relevant",
    "Passage: {passage}\nQuestion: {question}\n"
    "Does the passage help to answer the question? Reply only with yes or no.",
    "in place of EDC²-RAG's reply for where nothing is relevant (section 4.3)",
)
RELEVANT_TO_STATEMENT = PromptTemplate(
    "relevant_to_statement",
    "Passage: {passage}\nStatement: {statement}\n"
    "Does the passage help to support or refute the statement? Reply only with yes or no.",
    "the same for a statement (appendix C.1)",
)
NOTHING_TO_EXTRACT = "No content to extract"
EXTRACT = PromptTemplate(
    "extract",
    "Documents:\n{passages}\nQuestion: {question}\n"
    "Copy from the documents the sentences that help most to answer the question. "
    "Return only these sentences.",
    "EDC²-RAG, section 4.3, with no reply for where nothing is relevant",
)
EXTRACT_OR_NOTHING = PromptTemplate(
    "extract",
    "Extract from the documents only what is relevant to the question, "
    f"without inferring anything. If nothing is relevant, reply: {NOTHING_TO_EXTRACT}\n"
    "Question: {question}\nDocuments:\n{passages}\nExtracted:",
    "EDC²-RAG, section 4.3",
)
VERIFY = PromptTemplate(
    "verify",
    "Documents:\n{passages}\nStatement: {statement}\n"
    "Copy from the documents the sentences that most clearly support or refute the statement. "
    "Return only these sentences.",
    "EDC²-RAG, appendix C.1.1, with no reply for where nothing is relevant",
)
VERIFY_OR_NOTHING = PromptTemplate(
    "verify",
    "Extract from the documents only what directly supports, refutes or elaborates on the statement, "
    f"without inferring anything. If nothing is relevant, reply: {NOTHING_TO_EXTRACT}\n"
    "Statement: {statement}\nDocuments:\n{passages}\nExtracted:",
    "EDC²-RAG, appendix C.1.1",
)
VERIFY_ABOUT_PERSON = PromptTemplate(
    "verify_about_person",
    "Documents:\n{passages}\nPerson: {person}\nStatement: {statement}\n"
    "Copy from the documents the sentences that most clearly support or refute the statement about the "
    "person. Return only these sentences.",
    "EDC²-RAG, appendix C.1.2, with no reply for where nothing is relevant",
)
VERIFY_ABOUT_PERSON_OR_NOTHING = PromptTemplate(
    "verify_about_person",
    "Extract from the documents only what directly supports, refutes or elaborates on the statement about "
    f"the person, without inferring anything. If nothing is relevant, reply: {NOTHING_TO_EXTRACT}\n"
    "Person: {person}\nStatement: {statement}\nDocuments:\n{passages}\nExtracted:",
    "EDC²-RAG, appendix C.1.2",
)
ANSWER_WITH_EVIDENCE = PromptTemplate(
    "answer",
    "Answer the question from the documents, and quote the evidence that supports the answer.\n"
    "Question: {question}\nDocuments:\n{passages}\nAnswer:",
    "EDC²-RAG, appendix C.2 (summarization)",
)
SELECT_ANSWER = PromptTemplate(
    "select_answer",
    "Compare the candidate answers to the question. Put those that mean the same together, and select the "
    "answer that most of them give and that does not contradict itself; of equal ones the most specific and "
    "concise.\nReply with two lines: the first begins with Reasoning: and says why, the second begins with "
    "Selected answer: and gives the answer alone.\n"
    "Candidate answers:\n{answers}\nQuestion: {question}",
    "EDC²-RAG, appendix C.2 (response)",
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
    "DynQR, appendix C (query rewriting), for a query in a conversation",
)
ARE_YOU_SURE = PromptTemplate(
    "are_you_sure",
    "Is your answer right? Reply only with yes or no.",
    "ours; asked behind the answer",
)
