"""Prompts that are sampled each in its own way share batches, and get what they would get alone."""

from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

PROMPTS = ["Where was Ada born?", "The Orun", "Who is the mayor of Velm?", "x"]
WAYS = [
    SamplingParams(max_tokens=6),
    SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=9),
    SamplingParams(n=2, temperature=0.7, top_p=0.9, seed=5, max_tokens=14, stop=("a",)),
    SamplingParams(n=2, max_tokens=3),
]


def test_each_gets_what_it_gets_alone() -> None:
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    passes: list[int] = []
    hook = tiny_model("llama").register_forward_pre_hook(
        lambda module, arguments, keywords: passes.append(len(keywords["input_ids"])), with_kwargs=True
    )
    together = reader.generate_each(PROMPTS, WAYS)
    hook.remove()
    alone = [reader.generate([prompt], way)[0] for prompt, way in zip(PROMPTS, WAYS, strict=True)]
    assert [[a.text for a in row] for row in together] == [[a.text for a in row] for row in alone]
    assert [len(row) for row in together] == [1, 3, 2, 2]
    # The prompts in one pass, then a pass for each token of the longest answer but its last.
    assert len(passes) <= 1 + 13
    begun = reader.begin_each(PROMPTS, 2, WAYS)
    assert [answer.text for answer in reader.finish(begun)] == [row[0].text for row in alone]
