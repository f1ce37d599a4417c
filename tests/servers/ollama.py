"""Ollama's own API in this process, as https://docs.ollama.com/api has it; not tried on Ollama itself.

    with FakeOllama(ToyModel()) as server:
        model = ChatOllama(model="toy", base_url=server.url)

It serves ``/api/show``, and ``/api/chat`` and ``/api/generate``, whole and streamed: an object a line,
log-probabilities as ``[{"token", "logprob", "bytes", "top_logprobs"}]``, settings under ``options``, thoughts
under ``thinking`` where ``think`` asks for them, and else as ``<think>`` in the text.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.servers.service import Answer, Asked, FakeService, Json, lines
from tests.servers.toy_model import Script, Token, ToyModel, split

MAX_TOP = 20


class FakeOllama(FakeService):
    """The server.

    Args:
        model: What answers; default a ``ToyModel``.
        logprobs: Whether it knows of them: servers before 0.12.11 do not, and say nothing.
        thought: What the model thinks before it answers.
    """

    def __init__(
        self, model: ToyModel | Script | None = None, *, logprobs: bool = True, thought: str = ""
    ) -> None:
        super().__init__()
        self.model = model or ToyModel()
        self.logprobs = logprobs
        self.thought = thought

    def answer(self, asked: Asked) -> Answer:
        """Answer as Ollama does."""
        body = asked.body
        if asked.path == "/api/show":
            return Answer({"details": {}, "model_info": {"toy.context_length": 4096}})
        unknown = body.get("options", {}).keys() - OPTIONS
        if unknown:
            return Answer({"error": f"invalid option provided: {sorted(unknown)[0]}"}, 400)
        pieces = list(self._pieces(body, "chat" if asked.path == "/api/chat" else "generate"))
        if body.get("stream", True):
            return Answer(lines(pieces), kind="application/x-ndjson")
        return Answer(_joined(pieces))

    def _pieces(self, body: Json, api: str) -> Iterator[Json]:
        options = body.get("options", {})
        prompt = (
            body["prompt"] if api == "generate" else "\n".join(turn["content"] for turn in body["messages"])
        )
        limit = options.get("num_predict", 128)
        said = self.model.say(prompt, options.get("temperature", 0.8), options.get("seed") or 0, 40)
        # None: the model thinks, and its marks stand in the text; false: it does not.
        think = body.get("think")
        thought = [] if think is False or not self.thought else [_sure(word) for word in split(self.thought)]
        before = thought if think else [_sure("<think>"), *thought, _sure("</think>")] if thought else []
        tokens = [*before, *said.tokens][:limit]
        for place, token in enumerate(tokens):
            thinking = bool(think) and place < len(before)
            yield {"model": body["model"], "done": False, **_text(api, token.text, thinking=thinking)} | (
                {"logprobs": [_entry(token, body.get("top_logprobs", 0))]}
                if body.get("logprobs") and self.logprobs
                else {}
            )
        yield {
            "model": body["model"],
            "done": True,
            "done_reason": "length" if len(before) + len(said.tokens) > limit else said.finish,
            "prompt_eval_count": len(split(prompt)),
            "eval_count": len(tokens),
            **_text(api, "", thinking=False),
        }


OPTIONS = frozenset(
    "mirostat mirostat_eta mirostat_tau num_ctx num_gpu num_thread num_predict repeat_last_n repeat_penalty "
    "temperature seed stop tfs_z top_k top_p min_p".split()
)


def _sure(text: str) -> Token:
    return Token(text, -0.001, {text: -0.001, " other": -7.0})


def _text(api: str, text: str, *, thinking: bool) -> Json:
    if api == "generate":
        return {"response": "" if thinking else text} | ({"thinking": text} if thinking else {})
    message = {"role": "assistant", "content": "" if thinking else text}
    return {"message": {**message, "thinking": text} if thinking else message}


def _entry(token: Token, top: int) -> Json:
    listed = token.top(min(top, MAX_TOP))
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": list(token.text.encode()),
        "top_logprobs": [{"token": word, "logprob": value} for word, value in listed.items()],
    }


def _joined(pieces: list[Json]) -> Json:
    found = dict(pieces[-1])
    for name in ("response", "thinking"):
        if any(name in piece for piece in pieces):
            found[name] = "".join(piece.get(name, "") for piece in pieces)
    if "message" in found:
        messages = [piece["message"] for piece in pieces]
        found["message"] = {
            "role": "assistant",
            "content": "".join(message["content"] for message in messages),
        }
        if thinking := "".join(message.get("thinking", "") for message in messages):
            found["message"]["thinking"] = thinking
    if listed := [entry for piece in pieces for entry in piece.get("logprobs", [])]:
        found["logprobs"] = listed
    return found
