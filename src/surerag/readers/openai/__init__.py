"""Readers behind an OpenAI-compatible API; the SDK is imported when first used."""

from surerag.readers.openai.probe import Probe
from surerag.readers.openai.reader import OpenAIReader

__all__ = ["OpenAIReader", "Probe"]
