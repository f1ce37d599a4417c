"""A callback handler that records models' answers in LangChain's runs, and the certainty of each answer."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.outputs import LLMResult
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableParallel, RunnableSequence
from langchain_core.runnables.passthrough import RunnableAssign
from pydantic import BaseModel

from langchain_surerag.families import FAMILIES, unbound
from langchain_surerag.models import reply_part
from langchain_surerag.runs import TAGS
from surerag import Usage, certainty_of
from surerag.certainty import NO_LOGPROBS, NO_WORDS, Certainty, Measure, check_measure, without_address
from surerag.errors import InputError, LogprobsError, SureragError
from surerag.readers import ReplyPart, finish_of, split_thoughts, trace_of_answer, usage_of

METADATA_KEY = "certainty"
"""Key of a message's certainty in ``response_metadata``."""
NO_LOGPROBS_REQUESTED = "the model was not asked for log-probabilities"
UNREADABLE = "the log-probabilities of the answer could not be read"
SEVERAL = 'the output holds answers of several calls; put the answer to measure under the key "answer"'
NO_ANSWER = "no model finished an answer in this run"

_KEYS = tuple(dict.fromkeys(family.logprobs for family in FAMILIES))
_SETTINGS_OF_ONE_CALL = frozenset({"stream", "stream_options", "stream_usage", "user", "metadata", "run_id"})
_MOST_LEAVES = 10_000
_ANSWER_TAG = "map:key:answer"
"""LangChain's tag for the run that computes the value of the key ``answer``, if a chain returns a mapping."""
logger = logging.getLogger("surerag")


@dataclass(slots=True)
class SeenAnswer:
    """One answer of a model in a run.

    Attributes:
        text: The text of the answer's message.
        prompt: The messages to which the model replied.
        is_aside: Whether the answer is not the run's output: it calls tools, or is an intermediate step.
        message_id: Id of the answer's message; empty if the model returned a text, and no message.
        beside: Ids of the model calls that were running when the call of this answer began.
    """

    run_id: UUID
    text: str
    certainty: Certainty
    prompt: Sequence[BaseMessage]
    is_aside: bool
    message_id: str
    beside: Set[UUID]


@dataclass(slots=True)
class _Call:
    """An unfinished call of a model."""

    prompt: Sequence[BaseMessage]
    settings: Mapping[str, Any]
    scope: Mapping[str, str]
    is_aside: bool
    beside: Set[UUID]
    pieces: list[Any] = field(default_factory=list)
    certainty: Certainty | None = None


@dataclass(slots=True)
class RunTree:
    """The runs below one root run, and the models' answers in these runs.

    ``usage`` is the cost of the answers, and ``usage_after`` the cost of a second opinion after the runs.
    """

    root: UUID
    is_outermost: bool = False
    parents: dict[UUID, UUID | None] = field(default_factory=dict)
    answer_runs: set[UUID] = field(default_factory=set)
    templates: dict[UUID | None, Any] = field(default_factory=dict)
    calls: dict[UUID, _Call] = field(default_factory=dict)
    answers: list[SeenAnswer] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    usage_after: Usage = field(default_factory=Usage)

    def forget(self, run_id: UUID) -> None:
        """Remove the answers of a failed run, because no output contains them."""
        self.calls.pop(run_id, None)
        self.answers = [one for one in self.answers if run_id not in self._path(one.run_id)]

    def _path(self, run_id: UUID) -> Iterator[UUID]:
        at: UUID | None = run_id
        while at is not None:
            yield at
            at = self.parents.get(at)

    def shown_answer(self, output: Any) -> SeenAnswer | None:
        """Return the model's answer in an output; None if there is none, or several with different texts.

        Of several answers with the same text, the newest with log-probabilities is returned, because surerag
        may report an answer a second time, and then omits the log-probabilities. If several of these answers
        were generated at the same time, the least certain is returned, because the output may contain any of
        them.
        """
        answers = self._answers_in(output)
        if len({one.text.strip() for one in answers}) != 1:
            return None
        if not (measured := [one for one in answers if one.certainty.uncertainties]):
            return answers[-1]
        newest = measured[-1]
        return max(
            (
                one
                for one in measured
                if one is newest or one.run_id in newest.beside or newest.run_id in one.beside
            ),
            key=lambda one: one.certainty.uncertainty or 0.0,
        )

    def _answers_in(self, output: Any) -> list[SeenAnswer]:
        """Return the models' answers that an output contains, or that a parser turned into the output."""
        candidates = [one for one in self.answers if not one.is_aside] or self.answers
        answer = answer_in(output)
        texts = set(texts_in(answer))
        if shown := [one for one in candidates if one.text.strip() in texts]:
            return self._made_for(output, answer, shown) or shown
        return _parsed_from(candidates, texts) or candidates[-1:]

    def _made_for(self, output: Any, answer: Any, shown: Sequence[SeenAnswer]) -> list[SeenAnswer]:
        same = [one for one in shown if one.message_id and one.message_id == getattr(answer, "id", None)]
        if not same and isinstance(output, Mapping) and "answer" in output:
            same = [one for one in shown if self.answer_runs.intersection(self._path(one.run_id))]
        return same

    def certainty(self, output: Any) -> Certainty:
        """Return how sure a model was of the answer in an output.

        If a component of surerag has already put a certainty into the output, that certainty is returned.
        """
        if (certainty := certainty_in(output)) is not None:
            return certainty
        answer = self.shown_answer(output)
        if answer is None:
            return Certainty(reason=SEVERAL if self.answers else NO_ANSWER)
        return answer.certainty


def _parsed_from(candidates: Sequence[SeenAnswer], texts: Collection[str]) -> list[SeenAnswer]:
    with_some = [one for one in candidates if any(text in one.text for text in texts)]
    with_all = [one for one in with_some if all(text in one.text for text in texts)]
    return with_all[-1:] or with_some


class Watcher(BaseCallbackHandler):
    """Records every answer of models in the runs to which the handler is attached, separately for each run.

    The message of an answer gets the certainty in ``response_metadata``; in a stream, the last chunk gets it.
    """

    run_inline = True

    def __init__(self, measure: Measure | None = None) -> None:
        check_measure(measure)
        self._measure = measure
        self._trees: dict[UUID, RunTree] = {}

    def ended(self, tree: RunTree, output: Any) -> None:
        """Handle the output of a run that ended; a derived class may override this method."""

    def assessed(self, certainty: Certainty) -> Certainty:
        """Return ``certainty``; a derived class may add the probability that the answer is right."""
        return certainty

    def _enter(self, run_id: UUID, parent: UUID | None, tags: Sequence[str] | None = None) -> RunTree:
        tree = self._tree_of(run_id, parent)
        if _ANSWER_TAG in (tags or ()):
            tree.answer_runs.add(run_id)
        tree.parents[run_id] = parent
        self._trees[run_id] = tree
        return tree

    def _tree_of(self, run_id: UUID, parent: UUID | None) -> RunTree:
        tree = None if parent is None else self._trees.get(parent)
        return RunTree(run_id, is_outermost=parent is None) if tree is None else tree

    def _leave(self, run_id: UUID, output: Any = None, *, failed: bool = False) -> None:
        tree = self._trees.pop(run_id, None)
        if tree is None:
            return
        if failed:
            tree.forget(run_id)
        if tree.root == run_id:
            for one in tree.parents:
                self._trees.pop(one, None)
            if not failed:
                self.ended(tree, output)

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        run_type: str | None = None,
        **_: Any,
    ) -> None:
        """Record that a run began; if the run fills a prompt template, store the template."""
        tree = self._enter(run_id, parent_run_id, tags)
        if run_type == "prompt":
            tree.templates[parent_run_id] = serialized

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """Record that a tool was called."""
        self._enter(run_id, parent_run_id)

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """Record that a retriever was called."""
        self._enter(run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """Record the end of a run."""
        self._leave(run_id, outputs)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """Record the end of a run."""
        self._leave(run_id, output)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
        """Record the end of a run."""
        self._leave(run_id, documents)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Record that a run failed."""
        self._leave(run_id, failed=True)

    on_tool_error = on_retriever_error = on_llm_error = on_chain_error

    # Calls of models.

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Sequence[Sequence[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        invocation_params: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Record a call of a chat model."""
        tree, settings = self._enter(run_id, parent_run_id, tags), invocation_params or {}
        scope = _scope(serialized, settings, tree.templates.get(parent_run_id))
        is_aside = set(TAGS["step"]) <= set(tags or ())
        prompt, beside = messages[0] if messages else (), frozenset(tree.calls)
        tree.calls[run_id] = _Call(prompt, settings, scope, is_aside, beside)

    def on_llm_start(self, serialized: Any, prompts: Sequence[str], *, run_id: UUID, **keywords: Any) -> None:
        """Record a call of a model whose prompt is a text."""
        messages = [[BaseMessage(content=prompt, type="human")] for prompt in prompts]
        self.on_chat_model_start(serialized, messages, run_id=run_id, **keywords)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> None:
        """Record a piece of an answer; the last piece gets the certainty."""
        tree = self._trees.get(run_id)
        call = None if tree is None else tree.calls.get(run_id)
        if call is None or chunk is None:
            return
        call.pieces.append(chunk)  # parsed at the end, so that the next piece is not delayed
        message = getattr(chunk, "message", None)
        if isinstance(message, AIMessageChunk) and message.chunk_position == "last":
            call.certainty = self._certainty(_joined(call.pieces), call, message)
            _note(message, call.certainty)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Record an answer, or several answers to one prompt, and put the certainty into each message."""
        tree = self._trees.get(run_id)
        call = None if tree is None else tree.calls.pop(run_id, None)
        if tree is None or call is None:
            return
        generations = response.generations[0] if response.generations else []
        if (usage := _usage_of(response, generations)) is not None:
            tree.usage += usage
        # Reversed: LangChain returns the first generation, and ``answers[-1]`` must be the returned answer.
        for generation in reversed(generations):
            part, message = _part(generation), getattr(generation, "message", None)
            certainty = call.certainty or self._certainty(part, call, message)
            calls_tools = isinstance(message, AIMessage) and bool(message.tool_calls)
            if message is not None and not calls_tools:
                _note(message, certainty)
            aside = call.is_aside or calls_tools
            message_id = str(getattr(message, "id", None) or "")
            tree.answers.append(
                SeenAnswer(run_id, part.text, certainty, call.prompt, aside, message_id, call.beside)
            )
        output = getattr(generations[0], "message", generations[0].text) if generations else None
        self._leave(run_id, output)

    def _certainty(self, part: ReplyPart, call: _Call, message: Any = None) -> Certainty:
        stored = certainty_in(getattr(message, "response_metadata", None))
        # A ChatReader, or the handler of with_certainty, has stored the certainty.
        if stored is not None and stored.uncertainties:
            stored = stored.by(self._measure or stored.measure)
            return self.assessed(replace(stored, scope=call.scope))
        thoughts, answer = split_thoughts(part.text)
        if not part.entries:
            names = ("logprobs", "top_logprobs", "response_logprobs")
            requested = any(call.settings.get(name) for name in names)
            reason = NO_LOGPROBS if requested else NO_LOGPROBS_REQUESTED
            return Certainty(reason=reason if answer.strip() else NO_WORDS, scope=call.scope)
        thought, top = bool(thoughts or part.thoughts), _alternatives(call.settings)
        try:
            trace = trace_of_answer(part.entries, answer, top_logprobs=top, thought=thought)
        except LogprobsError as error:
            logger.warning("certainty.unreadable: %s", error.message)
            return Certainty(reason=UNREADABLE, scope=call.scope)
        is_cut = bool(part.finish) and finish_of(part.finish) != "stop"
        certainty = certainty_of(trace, measure=self._measure, is_cut=is_cut, scope=call.scope)
        return self.assessed(certainty)


def _part(piece: Any) -> ReplyPart:
    try:
        return reply_part(piece, *_KEYS)
    except SureragError:  # log-probabilities in an unknown format
        return reply_part(piece)


def _usage_of(response: LLMResult, generations: Sequence[Any]) -> Usage | None:
    if counted := (response.llm_output or {}).get("token_usage"):
        return usage_of(counted)
    return reply_part(generations[0]).usage if generations else None


def _joined(pieces: Sequence[Any]) -> ReplyPart:
    parts = list(map(_part, pieces))
    return ReplyPart(
        "".join(part.text for part in parts),
        "".join(part.thoughts for part in parts),
        [entry for part in parts for entry in part.entries],
        next((part.finish for part in reversed(parts) if part.finish), None),
    )


def _note(message: BaseMessage, certainty: Certainty) -> None:
    message.response_metadata = {**message.response_metadata, METADATA_KEY: certainty.to_dict()}


def _alternatives(settings: Mapping[str, Any]) -> int | None:
    # The chat API has a number top_logprobs, the completions API a number logprobs.
    for name in ("top_logprobs", "logprobs"):
        if isinstance(number := settings.get(name), int) and not isinstance(number, bool):
            return number
    return None


def _scope(serialized: Any, settings: Mapping[str, Any], template: Any) -> dict[str, str]:
    """Return the model, settings and prompt template of a call, for comparison with a calibration."""
    names: Any = (serialized or {}).get("id") or [settings.get("_type") or "model"]
    model = next((settings[name] for name in ("model", "model_name") if settings.get(name)), "")
    lasting = {name: value for name, value in settings.items() if name not in _SETTINGS_OF_ONE_CALL}
    scope = {"reader": without_address(str(model or names[-1])), "settings": _fingerprint(lasting)}
    return scope if template is None else {**scope, "prompt": _fingerprint(_wording(template))}


def scope_before_calls(chain: Any) -> dict[str, str]:
    """Return the scope of the model whose answer is the output of a chain, or an empty scope.

    The scope is empty if it is not known before the chain runs, as for agents and for chains that end in a
    function.
    """
    chain = unbound(chain)[0]
    if isinstance(chain, RunnableAssign):
        chain = chain.mapper
    if isinstance(chain, RunnableParallel):
        return scope_before_calls(chain.steps__.get("answer"))
    steps = chain.steps if isinstance(chain, RunnableSequence) else [chain]
    while len(steps) > 1 and isinstance(steps[-1], BaseOutputParser):
        steps = steps[:-1]
    model, keywords, _ = unbound(steps[-1])
    if not isinstance(model, BaseChatModel):
        return scope_before_calls(model) if len(steps) > 1 else {}
    settings = model._get_invocation_params(**keywords)
    prompt = steps[-2] if len(steps) > 1 else None
    template = dumpd(prompt) if isinstance(prompt, BasePromptTemplate) else None
    return _scope(dumpd(model), settings, template)


def _fingerprint(value: Any) -> str:
    written = json.dumps(value, sort_keys=True, default=lambda _: "")
    return hashlib.sha256(written.encode()).hexdigest()[:16]


def _wording(template: Any) -> Any:
    """Return a serialised template without values that may differ from call to call, such as the date."""
    if isinstance(template, Mapping):
        return {name: _wording(one) for name, one in template.items() if name != "partial_variables"}
    return [_wording(one) for one in template] if isinstance(template, list) else template


def certainty_in(output: Any) -> Certainty | None:
    """Return the certainty under the key ``certainty`` of an output or of metadata, if any."""
    values = output.get(METADATA_KEY) if isinstance(output, Mapping) else None
    if isinstance(values, Mapping):
        with suppress(InputError):
            return Certainty.from_dict(values)
    return None


def answer_in(output: Any) -> Any:
    """Return the answer in an output: the value under ``answer``, the last message, or the whole output."""
    if isinstance(output, Mapping):
        if "answer" in output:
            return output["answer"]
        messages = output.get("messages")
        return messages[-1] if isinstance(messages, list) and messages else output
    is_talk = isinstance(output, list) and any(
        isinstance(one, BaseMessage) and not isinstance(one, AIMessage) for one in output
    )
    return output[-1] if is_talk else output


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in an output: its strings, and the texts of its messages, stripped of white space."""
    left, count = [value], 0
    while left and count < _MOST_LEAVES:
        one, count = left.pop(), count + 1
        if isinstance(one, str):
            yield one.strip()
        elif isinstance(one, BaseMessage):
            yield str(one.text).strip()
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, BaseModel):
            left += vars(one).values()
