"""What a local reader reads for DENSE: prefixes that contexts share are read once."""

from __future__ import annotations

from surerag import DenseCache, DenseEvaluator, DenseOptions, Passage
from surerag.entailment import ExactEntailer
from surerag.methods.dense.memory import Memory
from surerag.readers.local import TransformersReader
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

COUNT, LENGTH = 4, 60


def test_contexts_are_read_for_their_tails_only() -> None:
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    texts = [chr(97 + place) * LENGTH for place in range(COUNT)]
    prompts, cache = DenseOptions.PROMPTS, DenseCache()
    for text in texts:
        # Known rephrasings, of equal length and different from the first character on.
        key = Memory(reader=reader.name).rephrasing_key(prompts["rephrase"].render(passage=text), 8)
        cache.rephrasings[key] = text.upper()
    dense = DenseEvaluator(reader, ExactEntailer(), max_tokens=1, rephrase_tokens=8, cache=cache)
    result = dense.run("Where?", [Passage(text) for text in texts])
    assert (result.calls.rephrasings, result.calls.answers) == (0, COUNT + 1)
    count = reader.count_tokens
    # A chunk brings its number and its line's end; the instructions before the chunks are read once.
    chunk = count(f"[1] {texts[0]}\n")
    before = count(prompts["answer"].render(question="Where?", passages=""))
    floor = before + COUNT * chunk + chunk * COUNT * (COUNT + 1) // 2
    assert reader.usage.prompt_tokens >= (COUNT + 1) * COUNT * LENGTH
    assert 0.9 * floor <= reader.tokens_read <= floor
