r"""A web service that streams answers as server-sent events, and says how sure the model was of each answer.

    pip install ".[langchain,demo]" langchain-community faiss-cpu langchain-huggingface langchain-openai
    pip install fastapi uvicorn
    python cookbooks/service.py      # with the demo's model and text; then run in another terminal:
    curl -N localhost:8000/ask -H 'Content-Type: application/json' \
        -d '{"question": "When was the Battle of Hastings?"}'

The answer arrives as events named ``token``. The last event is ``end``, with the uncertainty and ``shown``.
If ``shown`` is false, the page that displays the tokens must replace the tokens by ``answer``, which then
is "I do not know." or your own sentence. ``probability`` is the probability that the answer is right; without
a policy it is null.
With ``{"question": …, "draft": false}`` the service sends no word before it knows whether to show the answer.
After a failure, the service sends an event ``error``, without details of the failure. With a policy,
the service streams only after one answer has confirmed that the policy fits the chain. Until then, the
service sends an answer when the answer is complete. If the policy does not fit, the service does not start
or, if this is noticed only at an answer, sends ``error``. A policy without a guarantee shows no answer; the
log says so. On Ctrl-C, the service stops the running answers, sends ``error``, and ends.

Settings are environment variables:

- ``BASE_URL`` and ``MODEL``: the address of an OpenAI-compatible server, such as vLLM or Ollama, and the
  name of a model on this server. ``OPENAI_API_KEY`` is the key of the server. Without ``BASE_URL`` the
  demo's small model answers in this process.
- ``PORT``: the port; the default is 8000.
- ``ABSTENTION``: the sentence in place of an answer that is not shown; the default is "I do not know.".
- ``POLICY``: a file with a policy that you calibrated with the chain of ``load_chain``. Without a policy,
  answers whose uncertainty exceeds 1 nat are not shown. This limit is a guess: calibrate it.

This code makes such a file, from questions whose right answers you know. Python finds ``cookbooks`` if your
script is in the main folder of the repository::

    from cookbooks.service import load_chain
    from langchain_surerag import CertaintyChain
    from surerag import CalibrationRow, calibrate_abstention
    from surerag.measures import contains

    chain, rows = CertaintyChain(load_chain()), []
    for question, right_answer in questions:
        output = chain.invoke(question)
        score = contains(output["answer"], [right_answer])
        rows.append(CalibrationRow.of(output["certainty"], score))
    calibrate_abstention(rows, max_risk=0.1).save("policy.json")

``surerag calibrate run.db`` calibrates for the prompts of ``surerag compare``, not for the service's prompt.
A policy of ``surerag calibrate`` records no prompt, so the service cannot notice that the prompts differ.

Replace the documents, the embeddings and the prompt in ``load_chain`` by your own. ``create_app`` also takes
a function that returns a LlamaIndex query engine, whose LLM is ``with_certainty(llm)``. The output of a chain
may be a message, a text, or a mapping with ``answer`` or ``messages``. If the chain needs only one input,
such as ``question``, ``input`` or ``messages``, this input gets the question.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import AddableDict
from pydantic import BaseModel, StringConstraints

from langchain_surerag import CertaintyChain, SelectiveAnswer
from surerag import AbstentionPolicy, Certainty
from surerag.errors import ConfigurationError, InputError

SECONDS = 60.0  # for one answer
NO_ANSWER = "I do not know."
NO_FIT = "the policy does not fit: it was calibrated for another model, another prompt or other settings"
MORE = "Calibrate with more questions, or with a larger max_risk."
LIMIT = 1.0  # nats; without a policy, answers with a greater uncertainty are not shown

logger = logging.getLogger(__name__)


class Ask(BaseModel):
    """The body of a request. The question is not in the address, because proxies log addresses."""

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
    draft: bool = True


def load_chain() -> Runnable[Any, Any]:
    """Load the model, documents and index, and return the chain that answers questions with them."""
    from langchain_community.vectorstores import FAISS
    from langchain_core.documents import Document
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough
    from langchain_huggingface import HuggingFaceEmbeddings
    from langchain_openai import ChatOpenAI

    from langchain_surerag import ChatReader, with_certainty
    from surerag.demo import load_corpus, load_reader
    from surerag.encoders import packaged_minilm_path

    if address := os.environ.get("BASE_URL"):
        if not (name := os.environ.get("MODEL")):
            raise ConfigurationError("MODEL is not set", hint="set MODEL to the name of a model at BASE_URL")
        # with_certainty asks the server for log-probabilities. A ChatReader always returns log-probabilities.
        model: Any = with_certainty(ChatOpenAI(model=name, base_url=address, timeout=SECONDS))
    else:
        model = ChatReader(load_reader(), max_tokens=64)
    texts = [item for item in load_corpus() if item.metadata["title"] == "Normans"]
    embeddings = HuggingFaceEmbeddings(model_name=str(packaged_minilm_path()))
    store = FAISS.from_documents([Document(item.text, id=item.id) for item in texts], embeddings)

    def join(documents: list[Document]) -> str:
        return "\n".join(document.page_content for document in documents)

    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}\nAnswer:")
    search = store.as_retriever(search_kwargs={"k": 3})
    chain: Runnable[str, Any] = {"context": search | join, "question": RunnablePassthrough()} | prompt | model
    return chain


def name_input(chain: Runnable[Any, Any]) -> str:
    """Return the key of a chain's only input, or an empty string if the chain takes the question as a text.

    Raises:
        ConfigurationError: If the chain needs several inputs, or its output has no answer.
    """
    ends = chain.get_output_jsonschema()
    keys, kind = [*ends.get("properties", ())], ends.get("type")
    if kind in ("array", "boolean", "integer", "number") or (keys and not {"answer", "messages"} & {*keys}):
        found = f"the keys {', '.join(keys)}" if keys else f"the type {kind}"
        raise ConfigurationError(
            f"the output of the chain has {found}, and the service finds no answer in it",
            hint='end the chain in a message, in a text, or in a mapping with the key "answer"',
        )
    needed = [name for name in chain.get_input_jsonschema().get("required", ()) if name != "root"]
    if len(needed) > 1:
        raise ConfigurationError(
            f"the chain needs the inputs {', '.join(needed)}, and the service has only a question",
            hint='begin the chain with {"question": RunnablePassthrough(), …}, which fills the other inputs',
        )
    return needed[0] if needed else ""


class EngineChain:
    """Streams answers of a LlamaIndex query engine in the format of a CertaintyChain."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def astream(self, question: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield the pieces of an answer, and then its certainty."""
        response = await self.engine.aquery(question)
        if hasattr(response, "async_response_gen"):  # the engine was built with streaming=True
            async for piece in response.async_response_gen():
                yield AddableDict(answer=piece)
        else:
            yield {"answer": str(response)}
        unknown = Certainty(reason="build the engine with llama_index_surerag.with_certainty(llm)").to_dict()
        yield {"certainty": unknown, **response.metadata}


def check_policy(chain: Any, policy: AbstentionPolicy) -> None:
    """Check that a policy fits a chain or engine, as far as this is known before the first answer.

    Raises:
        ConfigurationError: If model, settings or prompt differ from those of the calibration, or if the chain
            has a policy of its own.
    """
    if hasattr(chain, "aquery"):
        from llama_index_surerag import AbstainingQueryEngine as Selecting
    else:
        Selecting = SelectiveAnswer  # type: ignore[assignment, misc]  # noqa: N806
    if isinstance(chain, Selecting):
        raise ConfigurationError(
            f"POLICY is set, and the {type(chain).__name__} has a policy of its own",
            hint=f"unset POLICY, or let the function return the chain without {type(chain).__name__}",
        )
    Selecting(chain, policy)
    if policy.threshold == -math.inf:
        logger.warning("EVERY QUESTION GETS THE SAME REPLY: %s %s", policy.guarantee, MORE)


@contextmanager
def on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` on Ctrl-C, before the web server's own handler of Ctrl-C is called."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: Any) -> None:
        stop()
        if callable(handler):
            handler(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def create_app(
    load: Callable[[], Any] = load_chain, seconds: float = SECONDS, abstention: str = ""
) -> FastAPI:
    """Return the web application that answers with the chain or query engine that ``load()`` returns.

    If an answer takes more than ``seconds``, the service sends the event ``error``. ``abstention`` is the
    sentence in place of an answer that is not shown; the environment variable ABSTENTION is its default.
    """
    policy = load_policy(os.environ.get("POLICY", ""))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        chain, state, loop = await asyncio.to_thread(load), app.state, asyncio.get_running_loop()
        if policy is not None:
            check_policy(chain, policy)
        if hasattr(chain, "aquery"):
            state.chain, state.input = EngineChain(chain), ""
        else:
            state.chain = chain if isinstance(chain, CertaintyChain) else CertaintyChain(chain)
            state.input = name_input(chain)
        state.policy, state.policy_fits = policy, policy is None  # with a policy: unknown before an answer
        state.abstention = abstention or os.environ.get("ABSTENTION") or NO_ANSWER
        state.stopped, state.waits = False, set[asyncio.Timeout]()

        def stop() -> None:
            state.stopped = True
            for wait in state.waits:
                wait.reschedule(0)

        with on_interrupt(lambda: loop.call_soon_threadsafe(stop)):
            yield

    app = FastAPI(title="Answers, and how sure the model is of them", lifespan=lifespan)

    @app.exception_handler(RequestValidationError)
    async def refuse(request: Request, error: RequestValidationError) -> JSONResponse:
        # FastAPI's own reply repeats the input, which may be long, and may be no valid text.
        return JSONResponse([{"at": one["loc"], "message": one["msg"]} for one in error.errors()], 422)

    @app.post("/ask")
    async def ask(asked: Ask, request: Request) -> StreamingResponse:
        state, question = request.app.state, asked.question
        value = [("user", question)] if state.input == "messages" else question
        inputs = {state.input: value} if state.input else question
        events = answer_events(state, inputs, asked.draft, seconds)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    return app


def load_policy(path: str) -> AbstentionPolicy | None:
    """Return the policy in a file, or None if the path is empty.

    Raises:
        ConfigurationError: If the file cannot be read, or is not a policy.
    """
    try:
        return AbstentionPolicy.load(path) if path else None
    except InputError as error:
        raise ConfigurationError(
            f"POLICY: {error}", hint="set POLICY to a file that policy.save(…) wrote, or unset it"
        ) from error


def to_event(name: str, **data: Any) -> str:
    """Return a server-sent event with its data as JSON."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def answer_events(state: Any, inputs: Any, draft: bool, seconds: float) -> AsyncIterator[str]:
    """Yield an event for each token, then ``end`` or ``error``. Closing the iterator stops the generation.

    ``state`` is the application's state, with the chain. If ``draft`` is false, no token is sent before it is
    known whether the answer is shown. The same holds until an answer has confirmed that the policy fits the
    chain. After ``seconds`` without a complete answer, the event ``error`` is sent.
    """
    answer, sent = None, ""
    draft = draft and state.policy_fits
    last: Mapping[str, Any] = {}
    try:
        async with aclosing(read_stream(state, inputs, seconds)) as chunks:
            async for last in chunks:
                if (text := answer_in(last)) is None:
                    continue
                # An AddableDict continues the answer. Any other output holds the whole answer so far.
                grows = isinstance(last, AddableDict) and "answer" in last
                answer = (answer or "") + text if grows else text
                if draft and len(answer) > len(sent) and answer.startswith(sent):
                    yield to_event("token", text=answer[len(sent) :])
                    sent = answer
        end = decide(answer, last, state.policy, state.abstention)
        state.policy_fits = state.policy_fits or end["uncertainty"] is not None
    except TimeoutError:
        reason = "the service was stopped" if state.stopped else f"no answer within {seconds:g} seconds"
        yield to_event("error", message=reason)
    except Exception as error:
        if isinstance(error, ConfigurationError) and "the policy was calibrated" in error.message:
            logger.error("no question is answered, because %s", error)  # noqa: TRY400  # the message says all
            yield to_event("error", message=NO_FIT)
            return
        logger.exception("a question was not answered")
        yield to_event("error", message="the model did not answer")
    else:
        if end["shown"] and not draft:
            yield to_event("token", text=answer)
        yield to_event("end", **end)


def answer_in(output: Mapping[str, Any]) -> str | None:
    """Return the answer in an output of a chain, or of a graph's node; None if the output has no answer."""
    for state in (output, *(value for value in output.values() if isinstance(value, Mapping))):
        answer, messages = state.get("answer"), state.get("messages")
        if answer is None and isinstance(messages, list) and messages and isinstance(messages[-1], AIMessage):
            answer = messages[-1]
        if isinstance(answer, AIMessage) and not answer.tool_calls:
            return str(answer.text)
        if isinstance(answer, str):
            return answer
    return None


def decide(
    answer: str | None, last: Mapping[str, Any], policy: AbstentionPolicy | None, abstention: str
) -> dict[str, Any]:
    """Return the data of the event ``end``. ``last`` is the chain's last output, with the certainty."""
    if answer is None:
        raise InputError(
            "the chain ended without an answer", hint='let it return a text, or {"answer": text}'
        )
    certainty = Certainty.from_dict(last["certainty"])
    if certainty.uncertainty is None:
        logger.warning("an answer is not shown, because its uncertainty is unknown: %s", certainty.reason)
    probability = certainty.probability
    if "abstained" in last:  # the chain is a SelectiveAnswer, which has decided, and has its own sentence
        shown, probability, abstention = not last["abstained"], last["probability"], answer
    elif policy is None:
        shown = certainty.uncertainty is not None and certainty.uncertainty <= LIMIT
    else:
        selected = policy.select(answer, certainty, abstention)
        shown, probability = not selected.abstained, selected.probability
        if policy.threshold == -math.inf:
            logger.warning("an answer is not shown: %s %s", policy.guarantee, MORE)
    text = answer if shown else abstention
    return {"shown": shown, "answer": text, "uncertainty": certainty.uncertainty, "probability": probability}


async def read_stream(state: Any, inputs: Any, seconds: float) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the outputs of the chain.

    Raises:
        TimeoutError: If the chain takes more than ``seconds``, or if Ctrl-C stopped the service.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    async with aclosing(state.chain.astream(inputs)) as stream:
        while True:
            async with asyncio.timeout_at(0 if state.stopped else deadline) as wait:
                state.waits.add(wait)
                try:
                    chunk = await anext(stream, None)
                finally:
                    state.waits.discard(wait)
            if chunk is None:
                return
            yield chunk


if __name__ == "__main__":
    import uvicorn

    try:
        app = create_app()
    except ConfigurationError as error:
        sys.exit(str(error))
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
