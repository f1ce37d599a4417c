"""From what the user named to an entailer."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.cli.readers import ReaderChoice
from surerag.entailment import ExactEntailer, NLIEntailer
from surerag.entailment.nli import DEFAULT_MODEL
from surerag.errors import ConfigurationError
from surerag.services import Entailer


@dataclass(frozen=True, slots=True)
class EntailmentChoice:
    """Which entailer was meant."""

    kind: str
    model: str = ""

    @classmethod
    def chosen(cls, text: str | None, choice: ReaderChoice) -> EntailmentChoice:
        """Read the option. The embedded reader was trained to judge the answers of its world."""
        if text is None:
            text = "judge" if choice.is_embedded else "nli"
        kind, colon, model = text.partition(":")
        if kind not in ("exact", "judge", "nli") or (colon and (kind != "nli" or not model)):
            raise ConfigurationError(
                f"--entailment must be exact, judge, nli or nli:MODEL, got {text!r}",
                hint="nli:MODEL takes the Hugging Face id or path of a classifier for inference",
            )
        return cls(kind, model or (DEFAULT_MODEL if kind == "nli" else ""))

    def loaded(self) -> Entailer | None:
        """Return the entailer; None where the reader itself is to judge."""
        if self.kind == "exact":
            return ExactEntailer()
        if self.kind != "nli":
            return None
        # What an earlier unit was judged is known to one worker and not to another, and in another batch the
        # last digits of a judgement differ; within a unit nothing is asked twice in any case.
        return NLIEntailer.from_pretrained(self.model, cached_pairs=0)
