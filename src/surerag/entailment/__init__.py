"""Who says whether one statement entails another; importing this room loads no model."""

from surerag.entailment.exact import ExactEntailer
from surerag.entailment.judge import JudgeEntailer
from surerag.entailment.nli import NLIEntailer

__all__ = ["ExactEntailer", "JudgeEntailer", "NLIEntailer"]
