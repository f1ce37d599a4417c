"""Gates that need no log-probabilities: on the disagreement of sampled answers, and on any function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from surerag.errors import ConfigurationError
from surerag.measures import discrete_semantic_entropy
from surerag.methods.functions import name_of, number_from
from surerag.methods.lazy_rag.gate import FirstPass, Gate, Look, Measured
from surerag.methods.meanings import SameMeaning, check_same_meaning, meaning_name, typical


@dataclass(frozen=True, slots=True)
class DisagreementGate(Gate):
    """Retrieve iff a few sampled answers disagree; for readers that report no log-probabilities.

    The signal is the discrete semantic entropy of the samples: the entropy over the shares of meaning
    clusters (Farquhar et al., Nature 630, 2024). It takes few values (seven for five samples), so that not
    every rate of retrieval can be had; a calibration says which one lies next to its own.

    It costs ``n_samples`` whole answers a question. Where the gate stays shut one of them is the answer: the
    first of the largest cluster. So a streamed answer comes as one piece, and no further call is made. The
    reader has to sample: an LLM that was built to answer at temperature 0, and is not told otherwise, agrees
    with itself on everything.

    Attributes:
        threshold: In nats, where the option ``threshold`` is not set. The default lies between the entropies
            of two against one (0.637) and of three against two (0.673): the gate stays shut where about two
            thirds of the samples agree. It is from no paper; calibrate it.
        n_samples: Answers to sample, at least two.
        temperature: Of sampling.
        seed: Of sampling.
        same_meaning: How to tell that two answers mean the same: ``"words"`` (the words of one stand in the
            other; for short answers, at no cost), ``"entailment"`` (by the method's ``entailer``: up to
            n (n − 1) judgements), or a function of two answers.
    """

    threshold: float = 0.65
    n_samples: int = 5
    temperature: float = 1.0
    seed: int = 0
    same_meaning: SameMeaning = "words"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.threshold_for(None)
        if self.n_samples < 2:
            raise ConfigurationError(
                f"one sample cannot disagree; n_samples must be at least 2, got {self.n_samples!r}"
            )
        if not self.temperature > 0:
            raise ConfigurationError(
                f"temperature must be above 0 for samples to differ, got {self.temperature!r}"
            )
        check_same_meaning(self.same_meaning)

    @property
    def name(self) -> str:
        """What decisions call it."""
        return "disagreement"

    @property
    def signal(self) -> str:
        """What is compared with the threshold."""
        drawn = f"{self.n_samples} samples at temperature {self.temperature:g}"
        return f"discrete semantic entropy of {drawn}, {meaning_name(self.same_meaning)}"

    @property
    def unit(self) -> str:
        """Of the signal."""
        return "nats"

    @property
    def least(self) -> float:
        """Smallest entropy."""
        return 0.0

    @property
    def default_threshold(self) -> float:
        """The gate's own."""
        return self.threshold

    @property
    def look(self) -> Look:
        """Sampled answers, and which of them mean the same."""
        return Look(
            n_samples=self.n_samples,
            temperature=self.temperature,
            seed=self.seed,
            same_meaning=self.same_meaning,
        )

    def measure(self, seen: FirstPass) -> Measured:
        """Entropy over clusters; None where most samples say nothing, so that there is no answer to give."""
        # Others who decide with this gate may have asked for more samples.
        samples, clusters = seen.samples[: self.n_samples], seen.clusters[: self.n_samples]
        if not typical(samples, clusters).text.strip():
            return Measured(None)
        entropy = discrete_semantic_entropy(clusters)
        return Measured(entropy, entropy, entropy, exact=True)


@dataclass(frozen=True, slots=True)
class FunctionGate(Gate):
    """Retrieve iff a function of the first pass exceeds a threshold.

    Attributes:
        function: Of the greedy answer (a ``Generation``), or of a list of samples where there are any, whose
            text is all there is of them; larger for a less certain reader. As the option ``gate``, a function
            of the whole answer needs no more than itself: ``gate=function``.
        threshold: On the function's own scale; calibrate finds one.
        n_tokens: Tokens of the answer that it sees; None for the whole answer. Without effect on samples.
        n_samples: Answers to sample; 0 for the greedy answer instead. Where the gate stays shut, one of them
            is the answer, as with :class:`DisagreementGate`.
        temperature: Of sampling.
        seed: Of sampling.
    """

    function: Callable[[Any], float]
    threshold: float | None = None
    n_tokens: int | None = None
    n_samples: int = 0
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not callable(self.function):
            raise ConfigurationError(
                f"function must be a function of the first pass, got {self.function!r}",
                hint="a function is written down by its name; give the gate again",
            )
        if self.n_samples < 0 or (self.n_tokens is not None and self.n_tokens < 1):
            raise ConfigurationError(
                "n_samples must be 0 or more and n_tokens None or at least 1, "
                f"got {self.n_samples!r} and {self.n_tokens!r}"
            )

    @property
    def name(self) -> str:
        """The function's own name."""
        return name_of(self.function)

    @property
    def signal(self) -> str:
        """What is compared with the threshold."""
        if self.n_samples:
            return f"{self.name} of {self.n_samples} samples at temperature {self.temperature:g}"
        return f"{self.name} of {'the answer' if self.n_tokens is None else f'{self.n_tokens} tokens'}"

    @property
    def default_threshold(self) -> float | None:
        """The gate's own, if it was given one."""
        return self.threshold

    @property
    def look(self) -> Look:
        """The answer with whatever trace the reader has, or samples."""
        if self.n_samples:
            return Look(n_samples=self.n_samples, temperature=self.temperature, seed=self.seed)
        return Look(self.n_tokens, trace="entropy")

    def measure(self, seen: FirstPass) -> Measured:
        """Ask the function; None where the reader said nothing.

        Raises:
            ConfigurationError: If it returns something that is not a number.
        """
        samples = list(seen.samples[: self.n_samples])
        said = typical(samples, seen.clusters[: self.n_samples]) if samples else seen.answer
        if said is None or not said.text.strip():
            return Measured(None)
        value = number_from(self.function(samples or said), f"the gate {self.name}")
        return Measured(value, value, value, exact=True)
