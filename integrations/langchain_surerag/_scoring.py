"""Scores of given text: a completions server echoes it, and is believed where it does so rightly.

Servers differ. Some echo log-probabilities one place off (llama.cpp does for models without a start
token), and such numbers look like any others. So a server is tried first: what its model said has to be
as likely when it is read as it was when it was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.prompt_values import PromptValue, StringPromptValue

from langchain_surerag._asking import Leaf, Replied
from langchain_surerag._dialects import Asked, Dialect, Scoring
from langchain_surerag._drafts import Draft
from surerag.errors import CapabilityError, ConfigurationError, ServiceError
from surerag.readers.openai.probe import PROBE_PROMPTS
from surerag.readers.openai.score import score_trace
from surerag.types import Sampling, TokenTrace

ECHO = Asked(Sampling(max_tokens=1), echo=True)
SCORING_HINT = (
    'pass scoring="probe" to reader_from_model to try a completions server, scoring="echo" if you know that '
    "it echoes rightly, or use a local model"
)

_SAID = Asked(Sampling(temperature=1.0, max_tokens=6, seed=1))
"""Sampled, so that its tokens are of different likelihood, and a wrong place shows."""
_SAME = 0.02
"""Log-probabilities nearer than this are the same: servers that batch differ in the last digits."""
_PASSING = frozenset({401, 403, 408, 409, 425, 429})
"""Statuses that say nothing about what a server can do."""


class Pair(NamedTuple):
    """A text, and what follows it and is to be scored."""

    prompt: str
    continuation: str

    @property
    def joined(self) -> PromptValue:
        """Both as one text, as it is echoed."""
        return StringPromptValue(text=self.prompt + self.continuation)


def read_back(pair: Pair, replied: Replied) -> TokenTrace:
    """Return the trace of a continuation that was echoed.

    Raises:
        LogprobsError: If the server did not echo it with log-probabilities.
    """
    dialect = replied.dialect
    choices = [dialect.choice(answer) for answer in replied.result.generations[0][:1]]
    with dialect.blamed():
        return score_trace("echo", {"choices": choices}, *pair, dialect.wanted(traced=True))


def obstacle_to_scoring(dialects: Sequence[Dialect], scoring: Scoring | None) -> str:
    """Return why given text cannot be scored, or nothing if it can.

    Args:
        dialects: The models that may come to answer; all of them have to be able to.
        scoring: What the user says about it; ``"probe"`` asks each model here and now.

    Raises:
        CapabilityError: If echo is insisted on where there is none.
        ConfigurationError: If ``scoring`` is something else.
    """
    if scoring not in (None, "echo", "probe"):
        raise ConfigurationError(f"unknown scoring {scoring!r}", hint='choose "probe", "echo" or None')
    without = [type(dialect.model).__name__ for dialect in dialects if not dialect.scores]
    if without:
        obstacle = f"{', '.join(dict.fromkeys(without))} has no echo; LLMs over OpenAI's completions API do"
        if scoring == "echo":
            raise CapabilityError(obstacle, hint="leave scoring out, or use a local model")
        return obstacle
    if scoring is None:
        return "it is not known whether its server echoes with the right log-probabilities"
    if scoring == "echo":
        return ""
    return next((found for dialect in dialects if (found := _misreading(dialect))), "")


def _misreading(dialect: Dialect) -> str:
    """Have a model's own words read back; return what is wrong with that, or nothing."""
    try:
        for prompt in PROBE_PROMPTS:
            said = _said(dialect, prompt)
            if said is not None and _tells(said):
                return _compared(dialect, prompt, said)
    except ServiceError as error:
        return str(error)
    return "it says too little to any of the probe's questions to tell"


def _said(dialect: Dialect, prompt: str) -> TokenTrace | None:
    replied = _leaf(dialect).invoke(StringPromptValue(text=prompt), asked=_SAID, **dialect.bound)
    draft = Draft(_SAID.sampling, traced=True)
    for answer in replied.result.generations[0][:1]:
        draft.add(replied.dialect, answer)
    draft.end()
    return draft.generation().trace


def _tells(said: TokenTrace) -> bool:
    """Whether a wrong place would show: some neighbours differ."""
    return any(abs(a - b) > 2 * _SAME for a, b in zip(said.logprobs, said.logprobs[1:], strict=False))


def _compared(dialect: Dialect, prompt: str, said: TokenTrace) -> str:
    pair = Pair(prompt, "".join(said.tokens))
    try:
        replied = _leaf(dialect).invoke(pair.joined, asked=ECHO, **dialect.bound)
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int) or not 400 <= status < 500 or status in _PASSING:
            raise
        return f"its server refused to echo a prompt (status {status})"
    read = read_back(pair, replied)
    if read.tokens != said.tokens:
        return "its server splits what the model said into other tokens when it echoes it"
    if any(abs(a - b) > _SAME for a, b in zip(read.logprobs, said.logprobs, strict=True)):
        return "its server echoes other log-probabilities than those of the same words when said"
    return ""


def _leaf(dialect: Dialect) -> Leaf:
    return Leaf(dialect.model, dialect.options)
