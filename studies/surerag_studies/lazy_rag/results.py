"""Results of the L-RAG study: plain frozen values, which its tables and its JSON file show."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.gate.results import Agreement, GateReport
from surerag.evaluation.statistics import Proportion
from surerag_studies.claims import Claim
from surerag_studies.lazy_rag.gates import GateRow


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A row of the paper's Table III; times in milliseconds.

    Attributes:
        label: How the row is called.
        retrieval_rate: Share of questions that retrieve.
        break_even: Retrieval latency above which the gate pays; None where it never does.
        savings: Time saved a question, one value for each of the study's retrieval latencies.
    """

    label: str
    retrieval_rate: float
    break_even: float | None
    savings: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Table III: with the paper's retrieval rates, and with those measured here.

    Attributes:
        gate: What the gate costs a question, in milliseconds.
        retrieval: The retrieval latencies of the columns, in milliseconds.
        published: The paper's rows, computed from its rates.
        measured: The same arithmetic on the rates of this run.
    """

    gate: float
    retrieval: tuple[float, ...]
    published: tuple[LatencyRow, ...]
    measured: tuple[LatencyRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyRagStudy(GateReport):
    """Everything that was found, with what it takes to find it again.

    Attributes:
        seed: Seed of the world that was asked.
        regime: What misleads in it; today's world where nothing does.
        encoder: Identity of the model behind both indices.
        monotone: Whether the retrieval rate never rises with the threshold.
        noninferiority: Accuracy at the calibrated threshold less that of standard retrieval.
        margin: Largest loss of accuracy that counts as not inferior.
        saving: Share of questions that did without retrieval, at the calibrated threshold.
        least_saving: What the saving must reach.
        agreement: The component's own run against the sweep.
        latency: Table III.
        gates: Other gates beside the entropy gate, where all retrieve equally often.
        claims: Claims tested.
    """

    seed: int
    regime: str
    encoder: str
    monotone: bool
    noninferiority: PairedDifference
    margin: float
    saving: Proportion
    least_saving: float
    agreement: Agreement
    latency: LatencyModel
    gates: tuple[GateRow, ...]
    claims: tuple[Claim, ...]
