"""What LangChain's faces of DENSE share: reader, judge and prompts, made of what a pipeline has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from langchain_core.runnables import Runnable

from langchain_surerag.prompts import PromptLike, prompt_from
from langchain_surerag.readers import reader_from_model
from surerag.entailment import JudgeEntailer
from surerag.errors import PromptError
from surerag.methods.dense_types import DensePrompts
from surerag.prompts import ENTAILMENT
from surerag.readers import Reader
from surerag.services import Entailer

_PROMPTS = ("rephrase", "answer", "closed_book", "sufficient")
_JUDGE = "entailment"


class Parts(NamedTuple):
    """Who answers and judges, and in what words they are asked."""

    reader: Reader
    entailer: Entailer
    prompts: DensePrompts


def parts_of(llm: Any, entailer: Any, prompts: Mapping[str, PromptLike]) -> Parts:
    """Make the parts of the method.

    Args:
        llm: A chat model or LLM, or a reader of surerag.
        entailer: An entailer of surerag; a model or reader that is asked in words; None asks ``llm``.
        prompts: Prompts in place of ours, by name; ``entailment`` is the judge's.

    Raises:
        ConfigurationError: If there is no model.
        PromptError: If a prompt is unknown, its slots do not fit, or nobody is asked with it.
    """
    unknown = sorted(prompts.keys() - {*_PROMPTS, _JUDGE})
    if unknown:
        raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {[*_PROMPTS, _JUDGE]}")
    reader = _reader(llm)
    judge = reader if entailer is None else entailer
    if isinstance(judge, Runnable | Reader):
        judge = JudgeEntailer(_reader(judge), prompt=prompt_from(prompts.get(_JUDGE), ENTAILMENT))
    elif _JUDGE in prompts:
        raise PromptError(
            f"{type(judge).__name__} is not asked with the prompt {_JUDGE!r}",
            hint="leave the prompt out, or let a model judge",
        )
    ours = DensePrompts()
    chosen = {name: prompt_from(prompts.get(name), getattr(ours, name)) for name in _PROMPTS}
    return Parts(reader, judge, DensePrompts(**chosen))


def _reader(model: Any) -> Reader:
    # DENSE looks at what is said alone: no alternatives to its tokens are asked for.
    return model if isinstance(model, Reader) else reader_from_model(model, top_logprobs=0)
