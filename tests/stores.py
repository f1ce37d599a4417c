"""Stores for tests: in memory, failing, and an S3 server on this machine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from surerag.remote import Remote


def memory() -> Remote:
    """Return a folder of its own in memory."""
    return Remote(f"memory://{uuid.uuid4().hex}/run")


class FlakyFileSystem(MemoryFileSystem):
    """Memory that fails as often as it is told to, and counts what is asked of it."""

    protocol = "flaky"
    failing: ClassVar[list[Exception]] = []
    asked: ClassVar[list[tuple[str, str]]] = []
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("flaky://", "memory://"))

    def _ask(self, what: str, path: str) -> None:
        self.asked.append((what, path))
        if self.failing:
            raise self.failing.pop(0)

    def pipe_file(self, path: str, value: bytes, **more: Any) -> Any:
        self._ask("write", path)
        return super().pipe_file(path, value, **more)

    def put_file(self, lpath: str, rpath: str, **more: Any) -> Any:
        self._ask("write", rpath)
        return super().put_file(lpath, rpath, **more)

    def cat_file(self, path: str, **more: Any) -> Any:
        self._ask("read", path)
        return super().cat_file(path, **more)


@contextmanager
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Remote, type[FlakyFileSystem]]]:
    """Yield a folder in a store that fails, and the store, without pauses between attempts."""
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    monkeypatch.setattr("surerag.remote._PAUSES", (0.0,) * 3)
    FlakyFileSystem.failing.clear()
    FlakyFileSystem.asked.clear()
    yield Remote(f"flaky://{uuid.uuid4().hex}/run"), FlakyFileSystem
    FlakyFileSystem.failing.clear()


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a client of an S3 server on this machine, to which s3:// leads; it has the bucket `bucket`."""
    pytest.importorskip("moto")
    s3fs = pytest.importorskip("s3fs")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in environment(f"http://{host}:{port}").items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
    client.create_bucket(Bucket="bucket")
    try:
        yield client
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


def environment(address: str) -> dict[str, str]:
    """Return what says where the server is, and who asks."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing-key-id",
        "AWS_SECRET_ACCESS_KEY": "testing-secret-key",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
