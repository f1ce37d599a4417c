"""Google's generateContent in this process, as its documentation has it; not tried on it.

    with FakeGemini(ToyModel()) as server:
        model = ChatGoogleGenerativeAI(model="gemini-2.5-flash", base_url=server.url, api_key="x")

It serves ``generateContent`` and ``streamGenerateContent``, with ``responseLogprobs`` and ``logprobs``
(https://ai.google.dev/api/generate-content). Models without them say so in the service's own words
(https://github.com/GoogleCloudPlatform/generative-ai/issues/2947).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.servers.service import Answer, Asked, FakeService, Json, events
from tests.servers.toy_model import Said, Script, Token, ToyModel, split


class FakeGemini(FakeService):
    """The server.

    Args:
        model: What answers; default a ``ToyModel``.
        logprobs: Whether the model gives log-probabilities.
        thought: What it thinks before it answers; only its length is told.
    """

    def __init__(
        self, model: ToyModel | Script | None = None, *, logprobs: bool = True, thought: str = ""
    ) -> None:
        super().__init__()
        self.model = model or ToyModel()
        self.logprobs = logprobs
        self.thought = thought

    @property
    def configs(self) -> list[Json]:
        """What the requests asked for: their generationConfig."""
        return [body.get("generationConfig", {}) for body in self.bodies]

    def answer(self, asked: Asked) -> Answer:
        """Answer as the service does."""
        config = asked.body.get("generationConfig", {})
        if config.get("responseLogprobs") and not self.logprobs:
            message = "Unable to submit request because Logprobs is not supported for this model."
            return Answer({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}, 400)
        prompt = "".join(part["text"] for turn in asked.body["contents"] for part in turn["parts"])
        limit = config.get("maxOutputTokens", 1000)
        thinking = (config.get("thinkingConfig") or {}).get("thinkingBudget", -1) != 0
        thought = len(split(self.thought)) if thinking else 0
        said = self.model.say(prompt, config.get("temperature", 1.0), config.get("seed") or 0, 40)
        left = max(limit - thought, 0)
        cut = Said(said.tokens[:left], "MAX_TOKENS" if len(said.tokens) > left else "STOP")
        usage = {
            "promptTokenCount": len(split(prompt)),
            "candidatesTokenCount": len(cut.tokens),
            "thoughtsTokenCount": min(thought, limit),
            "totalTokenCount": len(split(prompt)) + len(cut.tokens) + min(thought, limit),
        }
        if "streamGenerateContent" in asked.path:
            return Answer(events(_pieces(cut, config, usage)), kind="text/event-stream")
        return Answer(_piece(cut.tokens, config, usage, cut.finish))


def _pieces(said: Said, config: Json, usage: Json) -> Iterator[Json]:
    for token in said.tokens[:-1]:
        yield _piece([token], config, {"promptTokenCount": usage["promptTokenCount"]}, None)
    yield _piece(said.tokens[-1:], config, usage, said.finish)


def _piece(tokens: list[Token], config: Json, usage: Json, finish: str | None) -> Json:
    candidate: Json = {"index": 0, "content": {"role": "model"}}
    if tokens:
        candidate["content"]["parts"] = [{"text": "".join(token.text for token in tokens)}]
    if finish:
        candidate["finishReason"] = finish
    if config.get("responseLogprobs") and tokens:
        top = config.get("logprobs", 0)
        candidate["logprobsResult"] = {
            "chosenCandidates": [_entry(token.text, token.logprob) for token in tokens],
            "topCandidates": [
                {"candidates": [_entry(*item) for item in token.top(top).items()]} for token in tokens
            ],
        }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}


def _entry(token: str, logprob: float) -> Json:
    return {"token": token, "logProbability": logprob, "tokenId": 1}
