"""A Hugging Face pipeline whose model could think: what is set about that reaches its reader."""

from __future__ import annotations

import pytest
import transformers
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline

from langchain_surerag import reader_from_model
from surerag.messages import SamplingParams
from tests.readers.thinking_models import MARKED, QWEN3, thinking_model, thinking_tokenizer


@pytest.mark.filterwarnings("ignore::surerag.adapting.ChatTemplateWarning")
def test_settings_about_thinking_reach_the_reader() -> None:
    with thinking_model("llama", MARKED) as model:
        tokenizer = thinking_tokenizer(QWEN3)
        pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
        plain = HuggingFacePipeline(pipeline=pipeline)
        for llm in (plain, ChatHuggingFace(llm=plain, tokenizer=tokenizer)):
            off = reader_from_model(llm)
            on = reader_from_model(llm, thinking=True, thinking_tokens=30)
            assert (off.capabilities.thinking, on.capabilities.thinking) == ("off", "apart")
            sampling = SamplingParams(max_tokens=4)
            assert off.generate(["x"], sampling)[0][0].thinking_tokens == 0
            assert on.generate(["x"], sampling)[0][0].thinking_tokens > 2
            # One reader, and so one queue, for all who use a pipeline in one way.
            assert reader_from_model(llm, thinking=True, thinking_tokens=30) is on
            calm = reader_from_model(llm, template_options={"mood": "calm"})
            assert calm.name.endswith('(enable_thinking=false,mood="calm")')
