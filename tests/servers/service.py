"""The plumbing of small fake services: JSON in, JSON or a stream of lines out, every body on record."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

Json = dict[str, Any]


class Answer(NamedTuple):
    """What a service answers: one body, or lines of a stream."""

    body: Json | Iterable[bytes]
    status: int = 200
    kind: str = "application/json"


class Asked(NamedTuple):
    """A request that came in."""

    path: str
    body: Json


class FakeService:
    """A service in this process; derive from it and say what it answers.

    Attributes:
        requests: What came in, in order.
    """

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def bodies(self) -> list[Json]:
        """Bodies of the requests that came in."""
        return [request.body for request in self.requests]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: Asked) -> Answer:
        """Return what this service answers."""
        raise NotImplementedError


def events(payloads: Iterable[Json], *, named: bool = False) -> Iterable[bytes]:
    """Write server-sent events; ``named`` ones say their type on a line of its own."""
    for payload in payloads:
        name = f"event: {payload['type']}\n" if named else ""
        yield f"{name}data: {json.dumps(payload)}\n\n".encode()


def lines(payloads: Iterable[Json]) -> Iterable[bytes]:
    """Write one object a line."""
    for payload in payloads:
        yield json.dumps(payload).encode() + b"\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may hang up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    service: FakeService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        asked = Asked(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.service.requests.append(asked)
        body, status, kind = self.service.answer(asked)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if isinstance(body, dict):
            written = json.dumps(body).encode()
            self.send_header("Content-Length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in body:
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
