"""``surerag doctor``: finds out what a model or server can do, and which methods can use it."""

from __future__ import annotations

import typer
from rich.table import Table

from surerag.certainty import DEFAULT_MEASURE, WITHOUT_ALTERNATIVES
from surerag.cli.display import show, step
from surerag.cli.models import BaseUrl, Dtype, Model, load_reader
from surerag.encoders import HashingEncoder
from surerag.entailment import JudgeEntailer
from surerag.errors import SureragError
from surerag.messages import Pair
from surerag.methods import methods_by_name
from surerag.methods.lazy_rag.component import FixedSummary
from surerag.readers.protocol import BaseReader
from surerag.text import printable

MISSING = 1
"""Exit code if a method cannot use the model."""

LABELLED_PAIRS = (
    ("Ada was born in Velm.", "Ada was born in Velm in 1912.", False),
    ("Ada was born in Velm in 1912.", "Ada was born in Velm.", True),
    ("All birds of the island can swim.", "Some birds of the island can swim.", True),
    ("Some birds of the island can swim.", "No bird of the island can swim.", False),
    ("The bridge was closed on Monday.", "The bridge was open on Monday.", False),
    ("Paris is the capital of France.", "The capital of France is Paris.", True),
    ("The cat sleeps on the sofa.", "An animal sleeps on the sofa.", True),
    ("The train leaves at nine.", "The train leaves at ten.", False),
    ("Both brothers became doctors.", "One of the brothers became a doctor.", True),
    ("The recipe needs two eggs.", "The recipe was written by a monk.", False),
)
"""Each item is a premise, a hypothesis, and whether the premise entails the hypothesis."""

LEAST_RIGHT = 8
"""A model can be used as a judge if it is right on at least this many of the ten pairs."""


def doctor(base_url: BaseUrl = None, model: Model = None, dtype: Dtype = "auto") -> None:
    """Find out what a model can do, whether it can judge answers, and which methods can use it."""
    reader = load_reader(base_url, model, dtype, probe=False)
    show(_describe(reader, base_url))
    show(_certainty(reader))
    with step("Trying the model as a judge on ten pairs of statements"):
        judges, result = try_judge(reader)
    show(result)
    table = Table("Method", "Runs", "How the method runs, or error")
    verdicts = check_methods(reader, judges=judges)
    for name, (runs, text) in verdicts.items():
        table.add_row(name, "yes" if runs else "no", printable(text))
    show(table)
    raise typer.Exit(0 if all(runs for runs, _ in verdicts.values()) else MISSING)


def try_judge(reader: BaseReader) -> tuple[bool, str]:
    """Return whether a model judges :data:`LABELLED_PAIRS` well enough, and a sentence with the result."""
    rows = JudgeEntailer(reader).entail(
        [Pair(premise, hypothesis) for premise, hypothesis, _ in LABELLED_PAIRS]
    )
    usable = rows.sum(axis=1) > 0
    right = sum(
        bool(is_usable) and (int(row.argmax()) == 2) == entails
        for row, is_usable, (_, _, entails) in zip(rows, usable, LABELLED_PAIRS, strict=True)
    )
    text = f"As a judge: {right} of {len(rows)} pairs right, {int((~usable).sum())} replies unusable."
    if right >= LEAST_RIGHT:
        return True, f"{text} This is enough: at least {LEAST_RIGHT} are needed."
    return False, (
        f"{text} This is not enough: at least {LEAST_RIGHT} are needed. Use an NLI classifier as the "
        "entailer (NLIEntailer.from_pretrained)."
    )


def check_methods(reader: BaseReader, *, judges: bool) -> dict[str, tuple[bool, str]]:
    """Return, for each method, whether it works with the reader, and a text: how it works, or the error.

    ``judges`` says whether the reader can judge answers; see :func:`try_judge`.
    """
    text = FixedSummary("A passage.")
    services = {
        "reader": reader,
        "retriever": text,
        "summaries": text,
        "encoder": HashingEncoder(),
        "entailer": JudgeEntailer(reader),
    }
    verdicts = {}
    for name, method in methods_by_name().items():
        options = method.options_for(reader.capabilities)
        how = ", ".join(f'{option}="{value}"' for option, value in options.items()) or "needs only text"
        if method.JUDGES:
            how = "judged by the model itself" if judges else "with an NLI classifier as the entailer"
        try:
            method(**{one: services[one] for one in services.keys() & method.model_fields}, **options)
        except SureragError as error:
            verdicts[name] = False, str(error)
        else:
            verdicts[name] = True, how
    return verdicts


def _certainty(reader: BaseReader) -> str:
    if not reader.capabilities.logprobs:
        return "Certainty of answers: not possible, because the model returns no log-probabilities."
    measure = DEFAULT_MEASURE if reader.capabilities.entropy else WITHOUT_ALTERNATIVES
    return f"Certainty of answers: works, with the measure {measure}."


def _describe(reader: BaseReader, base_url: str | None) -> str:
    if base_url is not None:
        with step(f"Sending a dozen small requests to {base_url}"):
            return str(reader.probe())  # type: ignore[attr-defined]  # a reader that calls a server
    can = reader.capabilities
    rows = {
        "log-probabilities": "yes" if can.logprobs else "no",
        "entropies": can.entropy or "no",
        "can continue a cut answer": "yes" if can.begin == "native" else "no",
        "streaming": "yes" if can.stream else "no",
    }
    return "\n".join([reader.name, *(f"  {name:<30}{value}" for name, value in rows.items())])
