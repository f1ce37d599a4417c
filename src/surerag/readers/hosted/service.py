"""One model behind a server: how it is asked, and what was learnt of it; all on the background loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from surerag.errors import CapabilityError, ConfigurationError, RefusedError, ThinkingBudgetError
from surerag.messages import Generation, PartialGeneration, Prompt, SamplingParams, TokenTrace, Usage
from surerag.readers.hosted.answers import Draft, OpenedThoughtsError, choices_of, usage_of
from surerag.readers.hosted.client import PARAMETER_HINTS, Client, each, without_secrets
from surerag.readers.hosted.parameters import SupportedParameters, needed_parameters, warn_of_dropped
from surerag.readers.hosted.requests import (
    THINKING_OFF,
    Api,
    Scoring,
    TokenDetails,
    body_of,
    details_for,
    scoring_body,
    seed_of,
)
from surerag.readers.hosted.scoring import score_trace
from surerag.readers.hosted.streams import OpenAnswer
from surerag.readers.pieces import UsageCounter
from surerag.readers.protocol import begun_from_whole
from surerag.readers.thinking import THINKING_TOKENS

Json = Mapping[str, Any]
R = TypeVar("R")


@dataclass(eq=False)
class Service:
    """A model, asked over a client.

    Attributes:
        client: Sends the requests.
        model: Its name, as the server has it.
        api: Which of the server's APIs is used.
        details: What is requested of each token, where a method wants it.
        thinking: False where thinking was switched off.
        extra_body: Further fields of every request, which win over all others.
        thinks: Whether the model is known to think before it answers.
        supported: What the model is known to reject.
        scoring: How given text can be scored; None until a probe found a way.
        streams: Whether answers can be streamed with all that is requested of them.
        together: Whether several answers can be requested at once.
        usage: What was asked so far.
    """

    client: Client
    model: str
    api: Api
    details: TokenDetails
    thinking: bool | None
    extra_body: Json
    thinks: bool = False
    supported: SupportedParameters = field(default_factory=SupportedParameters)
    scoring: Scoring | None = None
    streams: bool = True
    together: bool = True
    usage: UsageCounter = field(default_factory=UsageCounter)
    _opened: bool = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "extra_body": without_secrets(self.extra_body)}

    @property
    def name(self) -> str:
        """Model and address, without credentials: the paths of one host may lead to different models."""
        return f"{self.model}@{self.client.address}"

    async def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` answers to each prompt."""
        return await each([self._samples(prompt, sampling) for prompt in prompts])

    async def _samples(self, prompt: Prompt, sampling: SamplingParams) -> list[Generation]:
        """Ask for ``sampling.n`` answers, and again for those that were left out or had no room."""
        details = details_for(sampling, self.details)
        count = sampling.n if sampling.temperature > 0 else 1
        # What may be left out is a matter of all samples, also where they are requested one by one.
        needed = needed_parameters(replace(sampling, n=count))
        answers: list[Generation] = []
        while len(answers) < count:
            start = len(answers)
            sizes = [count - start] if self.together else [1] * (count - start)
            parts = [
                replace(sampling, n=size, seed=seed_of(sampling.seed, start + place))
                for place, size in enumerate(sizes)
            ]
            replies = await each([self.ask(prompt, part, details, needed) for part in parts])
            for drafts, size in zip(replies, sizes, strict=True):
                if not any(draft.starved for draft in drafts[:size]):
                    answers += [draft.generation() for draft in drafts[:size]]
                self.together = self.together and (len(drafts) >= size or len(drafts) > 1)
        return answers * (sampling.n if count == 1 else 1)

    async def ask(
        self, prompt: Prompt, sampling: SamplingParams, details: TokenDetails, needed: Collection[str]
    ) -> list[Draft]:
        """Send one request, which cannot do without the needed parameters, and return its answers."""
        budget = self._budget
        body = body_of(self.api, self.model, prompt, sampling, details, budget)
        reply = await self._send(self.client.post, body, needed, sampling)
        choices, usage = choices_of(reply), usage_of(reply)
        share = usage
        if len(choices) > 1:
            thinking = -(-usage.thinking_tokens // len(choices))
            share = Usage(1, usage.prompt_tokens, 0, thinking, usage.cached_tokens)
        drafts = []
        for choice in choices:
            draft = self._draft(details, sampling, budget=budget, usage=share)
            draft.feed(choice)
            self._note(draft)
            drafts.append(draft)
        # The server's count is one sum for all choices.
        thinking = usage.thinking_tokens or min(
            sum(draft.thinking_tokens for draft in drafts), usage.completion_tokens
        )
        answered = usage.completion_tokens - (thinking - usage.thinking_tokens)
        self.usage.add(Usage(1, usage.prompt_tokens, answered, thinking, usage.cached_tokens))
        return drafts

    async def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return the trace of each continuation; CapabilityError if no way to score is known."""
        how = self.scoring
        if how is None or not self.details.logprobs:
            raise CapabilityError(
                f"{self.name} is not known to score given text",
                hint='call probe() to find out whether it can; api="completions" can more often than "chat"',
            )
        pairs = zip(prompts, continuations, strict=True)
        return await each([self.read_back(how, *pair, TokenDetails(True, 0)) for pair in pairs])

    async def read_back(
        self, how: Scoring, prompt: Prompt, continuation: str, details: TokenDetails
    ) -> TokenTrace:
        """Score one continuation in one of the ways that servers have."""
        if not continuation:
            return TokenTrace((), ())
        body = scoring_body(how, self.api, self.model, prompt, continuation, details)
        reply = await self._send(self.client.post, body, set(body))
        self.usage.add(usage_of(reply))
        return score_trace(how, reply, prompt, continuation, details)

    async def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Return the first tokens of one answer to each prompt."""
        if not self.streams:
            answers = await self.generate(prompts, replace(sampling, n=1))
            return [begun_from_whole(answer, n_tokens) for (answer,) in answers]
        answers_begun: list[PartialGeneration] = []

        async def one(prompt: Prompt) -> PartialGeneration:
            answers_begun.append(await self._begin(prompt, n_tokens, sampling))
            return answers_begun[-1]

        try:
            return await each([one(prompt) for prompt in prompts])
        except BaseException:
            cancel(answers_begun)
            raise

    async def _begin(self, prompt: Prompt, n_tokens: int, sampling: SamplingParams) -> PartialGeneration:
        """Open a stream and read its first tokens; again, if only then it shows that the model thinks."""
        one, details = replace(sampling, n=1), details_for(sampling, self.details)
        for again in (False, True):
            answer = await self.open(prompt, one, details)
            try:
                async with await self.client.turn():
                    begun = await answer.read(n_tokens)
                self._note(answer.draft)
                return begun
            except ThinkingBudgetError:
                self._note(answer.draft)
                if again or answer.draft.budget:
                    raise
            except OpenedThoughtsError:
                if again:
                    raise
            except BaseException:
                answer.close()
                raise
        raise AssertionError("unreachable")

    async def open(self, prompt: Prompt, sampling: SamplingParams, details: TokenDetails) -> OpenAnswer:
        """Send a request for a stream, and return its answer with nothing read yet."""
        budget = self._budget
        body = body_of(self.api, self.model, prompt, sampling, details, budget)
        body["stream_options"] = {"include_usage": True}
        events = await self._send(self.client.open, body, needed_parameters(sampling), sampling)
        draft = self._draft(details, sampling, budget=budget, streamed=True)
        return OpenAnswer(events, draft, self._ended)

    async def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Read what was begun to its end."""
        return await each([self._finish(item) for item in begun])

    async def _finish(self, begun: PartialGeneration) -> Generation:
        answer = claim(begun)
        if answer is None:
            return begun.partial if begun.done else begun.state
        async with await self.client.turn():
            return await answer.rest()

    async def _send(
        self,
        send: Callable[[Json], Awaitable[R]],
        body: Json,
        needed: Collection[str],
        sampling: SamplingParams | None = None,
    ) -> R:
        """Send a request; again without what the model rejects and the answer can do without."""
        switches = THINKING_OFF if self.thinking is False and self.api == "chat" else {}
        whole = {**switches, **body, **self.extra_body}
        needed = {*needed, *self.extra_body}
        while True:
            if missing := sorted(self.supported.drop & needed & set(whole)):
                raise RefusedError(
                    f"{self.name} rejects {' and '.join(missing)}", hint=PARAMETER_HINTS.get(missing[0], "")
                )
            before, sent = set(self.supported.drop), self.supported.apply(whole)
            try:
                return await send(sent)
            except RefusedError as error:
                # A request beside this one may have taught the same.
                learnt = self.supported.apply(whole) != sent
                if not learnt and not self.supported.learn(str(error), whole, needed):
                    raise
            if sampling is not None:
                warn_of_dropped(self.name, self.supported.drop - before, sampling)

    @property
    def _budget(self) -> int:
        """Tokens granted for thoughts."""
        return THINKING_TOKENS if self.thinks else 0

    def _draft(
        self,
        details: TokenDetails,
        sampling: SamplingParams,
        *,
        budget: int,
        usage: Usage | None = None,
        streamed: bool = False,
    ) -> Draft:
        listed = self.supported.cap.get("top_logprobs" if self.api == "chat" else "logprobs", details.top)
        return Draft(
            details._replace(top=min(details.top, listed)),
            limit=sampling.max_tokens,
            stop=sampling.stop,
            opened=self._opened,
            budget=budget,
            streamed=streamed,
            usage=usage or Usage(),
        )

    def _note(self, draft: Draft) -> None:
        """Note whether the model thinks; CapabilityError if it does although thinking was switched off."""
        if not draft.thought:
            return
        if self.thinking is False:
            raise CapabilityError(
                f"{self.name} thinks before it answers although thinking=False was passed",
                hint="use thinking=None, or a model whose thinking can be switched off",
            )
        self.thinks, self._opened = True, self._opened or draft.opened

    def _ended(self, draft: Draft) -> None:
        self.usage.add(draft.spent())
        self._opened = self._opened or draft.opened
        self.thinks = self.thinks or draft.opened


def claim(begun: PartialGeneration) -> OpenAnswer | None:
    """Take over the open answer behind what was begun, to finish it; None if all of it is there already.

    Raises:
        ConfigurationError: If another reader began it.
        ServiceError: If it was finished or cancelled before.
    """
    if begun.done or isinstance(begun.state, Generation):
        return None
    if not isinstance(begun.state, OpenAnswer):
        raise ConfigurationError(
            "this was begun by another reader", hint="finish it with the reader that began it"
        )
    begun.state.claim()
    return begun.state


def cancel(begun: Sequence[PartialGeneration]) -> None:
    """Close the streams of what was begun; those that are closed already stay as they are."""
    for item in begun:
        if isinstance(item.state, OpenAnswer):
            item.state.close()
