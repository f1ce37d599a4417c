"""What several commands have in common: a method's options, and those that name a reader."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import typer

from surerag.cli.readers import ReaderChoice
from surerag.options import Options
from surerag.places import Anywhere
from surerag.readers.keys import DEFAULT_KEY

R = TypeVar("R")

Model = Annotated[
    str | None,
    typer.Option(
        help="Hugging Face id or path of a causal model; with --base-url, the server's name for it. "
        "Default: the embedded reader.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        help="Hugging Face id or path of a causal model; with --base-url, the server's name for it; may be "
        "given repeatedly. Default: the embedded reader.",
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option(help="An OpenAI-compatible server, such as http://localhost:8000/v1.")
]
ApiKeyEnv = Annotated[
    str, typer.Option(help="Environment variable that holds the server's key.", metavar="NAME")
]
Api = Annotated[
    Literal["chat", "completions", "responses"],
    typer.Option(
        help="What the server is asked by: chat completions, plain completions, or OpenAI's Responses."
    ),
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Option of the model's chat template, such as enable_thinking=false; may be given repeatedly.",
        metavar="KEY=VALUE",
    ),
]
ExtraBody = Annotated[
    str | None,
    typer.Option(
        help='Further fields of every request to the server, such as \'{"reasoning_effort": "low"}\'.',
        metavar="JSON",
    ),
]
NoThinking = Annotated[
    bool, typer.Option("--no-thinking", help="Have a model that thinks before it answers answer at once.")
]

ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        help="Which column is what, such as question=query; may be given several times. Default: by name.",
        metavar="FIELD=NAME",
    ),
]


def option_of(options: type[Options], name: str) -> Any:
    """Return typer's description of a method's option.

    Args:
        options: The method's options.
        name: Which one.
    """
    option = options.OPTIONS[name]
    least = None if option.bound is None else int(option.bound.least)
    return typer.Option(min=least, help=option.doc.replace("``", ""))


def reader_choice(
    model: str | None,
    base_url: str | None,
    api_key_env: str,
    template_option: Sequence[str] | None,
    extra_body: str | None,
    no_thinking: bool,
    api: Literal["chat", "completions", "responses"] = "chat",
) -> ReaderChoice:
    """Return which reader the options name.

    Raises:
        BadParameter: If one of them cannot be read, or goes with another one.
    """
    if extra_body is not None and base_url is None:
        raise typer.BadParameter("goes with --base-url", param_hint="--extra-body")
    if api != "chat" and base_url is None:
        raise typer.BadParameter("goes with --base-url", param_hint="--api")
    if template_option and model is None and base_url is None:
        raise typer.BadParameter("goes with --model or --base-url", param_hint="--template-option")
    return ReaderChoice(
        model,
        base_url,
        api_key_env,
        api=api,
        template_options=template_options(template_option),
        extra_body=_body(extra_body),
        thinking=False if no_thinking else None,
    )


def template_options(given: Sequence[str] | None) -> dict[str, Any]:
    """Read options of a chat template, such as ``enable_thinking=false``.

    Raises:
        BadParameter: If one is no KEY=VALUE.
    """
    return dict(_template_option(item) for item in given or ())


def with_reader(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that name a reader, in place of its parameter ``choice``."""
    return given_by(command, "choice", (("model", Model, None), *_READER), reader_choice)


def with_readers(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that name one or more readers, in place of its parameter ``choices``."""

    def choices(model: Sequence[str] | None, **others: Any) -> tuple[ReaderChoice, ...]:
        named: Sequence[str | None] = model or [None]
        return tuple(reader_choice(name, **others) for name in named)

    return given_by(command, "choices", (("model", Models, None), *_READER), choices)


_READER: Sequence[tuple[str, Any, Any]] = (
    ("base_url", BaseUrl, None),
    ("api_key_env", ApiKeyEnv, DEFAULT_KEY),
    ("api", Api, "chat"),
    ("template_option", TemplateOption, None),
    ("extra_body", ExtraBody, None),
    ("no_thinking", NoThinking, False),
)


def given_by(
    command: Callable[..., R],
    name: str,
    options: Sequence[tuple[str, Any, Any]],
    chosen: Callable[..., Any],
) -> Callable[..., R]:
    """Give a command several options in place of one parameter.

    Args:
        command: What typer is to know.
        name: Of its parameter.
        options: Names, types as typer reads them, and defaults.
        chosen: From what was given for them to the parameter.
    """
    own = inspect.signature(command, eval_str=True)
    empty = inspect.Parameter.empty
    told = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for option, annotation, default in options
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> R:
        found = chosen(**{parameter.name: given.pop(parameter.name) for parameter in told})
        return command(**{name: found}, **given)

    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in own.parameters.values()
        if parameter.name != name
    ]
    wrapped.__signature__ = own.replace(parameters=[*kept, *told])  # type: ignore[attr-defined]  # read by inspect
    wrapped.__annotations__ = {
        parameter.name: parameter.annotation
        for parameter in [*kept, *told]
        if parameter.annotation is not empty
    }
    return wrapped


def _template_option(text: str) -> tuple[str, Any]:
    """Read one option: a value that is JSON is what it says, any other is a text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--template-option")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _body(text: str | None) -> Mapping[str, Any]:
    try:
        body = {} if text is None else json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"is no JSON: {error}", param_hint="--extra-body") from None
    if not isinstance(body, dict):
        raise typer.BadParameter(f"expected a JSON object, got {text!r}", param_hint="--extra-body")
    return body


def checked_output(place: str | None) -> str | None:
    """Refuse a folder or URL that cannot be written, before anything else.

    Raises:
        StorageError: If it cannot.
        ConfigurationError: If it is elsewhere, and there are no credentials.
    """
    from surerag.places import place_of
    from surerag.runs.store import check_output

    if place is not None:
        check_output(place_of(place))
    return place


def check_paths(questions: Anywhere | None, documents: Anywhere | None) -> None:
    """Refuse files that are not there, or of no known kind, before anything that takes long is imported.

    Raises:
        InputError: If one is not there.
    """
    from surerag.errors import InputError
    from surerag.evaluation.inputs import source_of
    from surerag.places import is_there

    if questions is not None:
        source_of(questions)
    if documents is not None and not is_there(documents):
        raise InputError(
            f"there are no documents at {documents}: no folder and no file of this name",
            hint="give --documents a folder of txt, md, html and pdf files, or JSONL with rows of text",
        )
