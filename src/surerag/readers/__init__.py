"""Readers, which are models that answer prompts: their protocol, and base classes for your own readers."""

from surerag.readers.calls import AWAITING, BLOCKING, Blocking, in_thread, items_of
from surerag.readers.client_reader import BegunStream, ClientReader, Keywords, Request
from surerag.readers.failures import (
    client_failure,
    described,
    in_plain_words,
    is_secret_name,
    secrets_in,
    without_credentials,
)
from surerag.readers.hosted.wire import next_reply_part, reply_parts
from surerag.readers.logprobs import ANY_VOCABULARY, answer_tokens, entries_of, trace_of_answer
from surerag.readers.pieces import THINKING_TOKENS, split_thoughts
from surerag.readers.protocol import BaseReader, BegunGeneration, Capabilities, Reader, as_reader
from surerag.readers.reading import Reading, ReplyPart, finish_of, usage_of

__all__ = [
    "ANY_VOCABULARY", "AWAITING", "BLOCKING", "THINKING_TOKENS", "BaseReader", "BegunGeneration",
    "BegunStream", "Blocking", "Capabilities", "ClientReader", "Keywords", "Reader", "Reading",
    "ReplyPart", "Request", "answer_tokens", "as_reader", "client_failure", "described", "entries_of",
    "finish_of", "in_plain_words", "in_thread", "is_secret_name", "items_of", "next_reply_part",
    "reply_parts", "secrets_in", "split_thoughts", "trace_of_answer", "usage_of", "without_credentials",
]  # fmt: skip
