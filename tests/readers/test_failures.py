"""Errors of any client become one of ours, by what they carry."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import httpx
import pytest

from surerag.errors import ContextLengthError, RefusedError, ServiceError, TransientServiceError
from surerag.readers.failures import kind_of, service_error


class Web(Exception):
    """A client's error with a status where the client puts it."""

    def __init__(self, message: str = "", **carried: Any) -> None:
        super().__init__(message)
        self.__dict__.update(carried)


class ThrottlingException(Web):
    """As Bedrock names it, with a status of 400."""


def wrapped(cause: Exception) -> Exception:
    error = Web("the framework's own words")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Web(status_code=401), RefusedError),
        (Web(code=403), RefusedError),
        (Web(response=httpx.Response(404)), RefusedError),
        (Web(response={"ResponseMetadata": {"HTTPStatusCode": 403}}), RefusedError),
        (wrapped(Web(status_code=404)), RefusedError),
        (Web("insufficient_quota", status_code=429), RefusedError),
        (TypeError("create() got an unexpected keyword argument 'colour'"), RefusedError),
        (ModuleNotFoundError("no module named 'anthropic'"), RefusedError),
        (wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), RefusedError),
        (wrapped(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")), RefusedError),
        (httpx.UnsupportedProtocol("file"), RefusedError),
        (httpx.LocalProtocolError("Illegal header value"), RefusedError),
        (httpx.ReadError("gone"), TransientServiceError),
        (httpx.RemoteProtocolError("cut"), TransientServiceError),
        (Web(status_code=429), TransientServiceError),
        (Web(status_code=529), TransientServiceError),
        (ThrottlingException(response={"ResponseMetadata": {"HTTPStatusCode": 400}}), TransientServiceError),
        (ConnectionResetError("gone"), TransientServiceError),
        (Web("maximum context length is 8 tokens", status_code=400), ContextLengthError),
        (Web(status_code=413), ContextLengthError),
        (Web("your input was flagged", status_code=403), ServiceError),
        (TypeError("'NoneType' object is not subscriptable"), ServiceError),
        (ValueError("no JSON"), ServiceError),
        (IndexError("list index out of range"), ServiceError),
        (Web(status_code=200), ServiceError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_kinds_of_failure(error: Exception, kind: type[ServiceError]) -> None:
    assert kind_of(error) is kind


def test_an_error_names_the_model_and_what_was_sent() -> None:
    error = service_error(IndexError("list index out of range"), "gpt")
    assert type(error) is ServiceError
    assert "gpt failed with IndexError: list index out of range" in str(error)
    ours = TransientServiceError("busy")
    assert service_error(ours, "gpt") is ours


def test_an_error_can_be_written_and_says_nothing_untrue_of_what_is_withheld() -> None:
    broken = service_error(Web("half a sign \ud83d", status_code=400), "gpt")
    assert "half a sign \ufffd" in str(broken)
    str(broken).encode()
    withheld = service_error(Web("the response was filtered: content_filter", status_code=400), "gpt")
    assert type(withheld) is ServiceError
    assert "cannot be read" not in str(withheld)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (httpx.ReadTimeout("slow"), "gpt did not answer in time: slow"),
        (TimeoutError("slow"), "gpt did not answer in time: slow"),
        (httpx.ConnectError("refused"), "gpt could not be reached: refused"),
        (httpx.RemoteProtocolError("cut"), "gpt failed with RemoteProtocolError: cut"),
    ],
)
def test_an_error_says_in_words_what_became_of_a_request(error: Exception, says: str) -> None:
    assert service_error(error, "gpt").message == says
