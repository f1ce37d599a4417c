"""A HuggingFaceLLM that could think: what is set about that reaches its reader."""

from __future__ import annotations

import pytest
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index_surerag import reader_from_llm
from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from tests.readers.thinking_models import MARKED, QWEN3, thinking_model, thinking_tokenizer


@pytest.mark.filterwarnings("ignore::surerag.adapting.ChatTemplateWarning")
def test_settings_about_thinking_reach_the_reader() -> None:
    with thinking_model("llama", MARKED) as model:
        llm = HuggingFaceLLM(model=model, tokenizer=thinking_tokenizer(QWEN3), context_window=512)
        off = reader_from_llm(llm)
        on = reader_from_llm(llm, thinking=True, thinking_tokens=30)
        assert (off.capabilities.thinking, on.capabilities.thinking) == ("off", "apart")
        assert off.name.endswith("(enable_thinking=false)")
        sampling = SamplingParams(max_tokens=4)
        assert off.generate(["x"], sampling)[0][0].thinking_tokens == 0
        assert on.generate(["x"], sampling)[0][0].thinking_tokens > 2
        calm = reader_from_llm(llm, template_options={"mood": "calm"})
        assert calm.name.endswith('(enable_thinking=false,mood="calm")')
        with pytest.raises(ConfigurationError, match="no chat template in use"):
            reader_from_llm(llm, chat_template=False, thinking=False)
