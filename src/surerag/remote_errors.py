"""What other file systems fail with, in words that hold no secret."""

from __future__ import annotations

import os
import re

_SECRET_NAME = re.compile(r"(?i)key|secret|token|passw|credential|connection_string")
_QUERY = re.compile(r"(\w+://[^\s'\"?]*)\?[^\s'\"]*")


def keys_of(protocol: str) -> str:
    """Return where a file system's keys come from, as a hint."""
    names = {
        "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for a public bucket "
        "FSSPEC_S3='{\"anon\": true}'",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login",
        "hf": "HF_TOKEN",
        "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    }
    same = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}
    told = names.get(same.get(protocol, protocol))
    return f"set in the environment {told}" if told else "give keys in the environment that may"


def is_about_credentials(error: Exception) -> bool:
    """Whether a file system's client found no keys, or none that hold."""
    name = type(error).__name__
    return "Credential" in name or name.startswith(("SSO", "UnauthorizedSSO", "TokenRetrieval"))


def reason_of(error: Exception) -> str:
    """Return the first line of what an error says, without anything that is a secret."""
    text = _QUERY.sub(r"\1", " ".join(str(error).split("\n", 1)[0].split())) or type(error).__name__
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name):
            text = text.replace(value, "[key]")
    return text.rstrip(".")[:300]
