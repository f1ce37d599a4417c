"""Readers that call an OpenAI-compatible API; the SDK is imported when it is first used."""

from surerag.readers.hosted.probe import Probe
from surerag.readers.hosted.reader import OpenAIReader

__all__ = ["OpenAIReader", "Probe"]
