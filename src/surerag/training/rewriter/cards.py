"""The card of a trained rewriter, and its way to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from surerag.errors import ConfigurationError, ServiceError
from surerag.extras import extra
from surerag.storage import write_whole
from surerag.training.rewriter.held_out import HeldOut
from surerag.training.rewriter.results import Learnt

CARD = "README.md"


def write_card(
    model: Path,
    base: str,
    learnt: Learnt,
    *,
    prompt: str,
    reward: str | None = None,
    held_out: HeldOut | None = None,
) -> Path:
    """Write what a rewriter is, how it was made, how it is used, and what it was worth.

    Args:
        model: Its folder.
        base: What it was trained from.
        learnt: How.
        prompt: The prompt that it was trained with.
        reward: What it was aligned to; None if it was only distilled.
        held_out: What was measured on queries that it did not learn from.
    """
    made = "distilled from a teacher's rewrites"
    made += f", then aligned by the reward `{reward}`" if reward else ""
    local = Path(base).exists()
    measured = str(held_out) if held_out is not None else "Nothing was held out to measure it on."
    adapter = ""
    if (model / "adapter").is_dir():
        adapter = "\n`adapter/` holds the same as low-rank adapters of the base, for peft and for servers.\n"
    source = "" if local else f"base_model: {base}\n"
    text = f"""---
library_name: transformers
pipeline_tag: text-generation
{source}tags: [query-rewriting, retrieval-augmented-generation, surerag]
---

# A query rewriter

Trained from `{Path(base).name if local else base}`: {made} (DynQR). {learnt}.

## Use

```python
from surerag import TransformersReader, UncertaintyRewriter

rewriter = TransformersReader.from_pretrained("{model.name}")
answer = UncertaintyRewriter(reader, retriever, rewriter=rewriter).run("…")
```

It answers this prompt, in its own chat template, with the rewritten query and nothing else:

```text
{prompt.strip()}
```
{adapter}
## What it was worth

{measured}
"""
    write_whole(model / CARD, text)
    return model / CARD


def push(model: Path, repository: str) -> str:
    """Upload a model's folder to the Hugging Face hub, as a private repository if there is none yet.

    Returns:
        Its address.

    Raises:
        ConfigurationError: If nobody is logged in, or the name cannot be used.
        ServiceError: If the hub does not answer.
    """
    with extra("train"):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
    try:
        hub = HfApi()
        address = str(hub.create_repo(repository, private=True, exist_ok=True))
        hub.upload_folder(repo_id=repository, folder_path=str(model))
    except (HFValidationError, LocalTokenNotFoundError) as error:
        raise ConfigurationError(
            f"the model cannot be pushed to {repository!r}: {error}",
            hint="log in with `hf auth login`, and name OWNER/NAME",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ServiceError(
            f"the hub did not take {repository!r}: {str(error).splitlines()[0]}",
            hint="the model is on the disk; run the same again",
        ) from error
    return address
