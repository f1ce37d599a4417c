"""Convert the embedded reader, or a model like it, to GGUF for llama.cpp.

    python -m tools.to_gguf MODEL_DIRECTORY READER.gguf

It knows the two architectures that the training script writes (Qwen3 and Llama, with tied or separate
embeddings) and byte-level BPE tokenizers that split words as GPT-2 does. Weights are kept in float32, so
that log-probabilities can be compared with those of transformers. For other models use llama.cpp's own
converter.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

_ARCHITECTURES = {"qwen3": gguf.MODEL_ARCH.QWEN3, "llama": gguf.MODEL_ARCH.LLAMA}


def convert(model: Path, target: Path) -> None:
    """Write a model directory as one GGUF file.

    Args:
        model: Directory with config, safetensors and tokenizer.
        target: File to write.

    Raises:
        ValueError: If the model is of another architecture, or has tensors that llama.cpp would not read.
    """
    config = AutoConfig.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    if config.model_type not in _ARCHITECTURES:
        raise ValueError(f"expected one of {sorted(_ARCHITECTURES)}, got {config.model_type!r}")
    architecture = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _write_shape(writer, config)
    _write_tokenizer(writer, tokenizer, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in sorted(load_file(model / "model.safetensors").items()):
        renamed = names.get_name(name, try_suffixes=(".weight",))
        if renamed is None:
            raise ValueError(f"llama.cpp has no place for the tensor {name!r}")
        if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            tensor = _interleaved(tensor, heads)
        writer.add_tensor(renamed, tensor.to(torch.float32).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _write_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig
) -> None:
    model: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    pieces = {number: piece for piece, number in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    unused, control, normal = gguf.TokenType.UNUSED, gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    types = [
        unused if number not in pieces else control if number in special else normal
        for number in range(config.vocab_size)
    ]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([pieces.get(number, f"<unused {number}>") for number in range(config.vocab_size)])
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    # Without a token named here, llama.cpp takes an ordinary one for it, and servers drop that from texts.
    has_start = tokenizer.bos_token_id is not None
    writer.add_bos_token_id(tokenizer.bos_token_id if has_start else tokenizer.pad_token_id)
    writer.add_add_bos_token(has_start)
    # llama.cpp puts no space before the first word; the chat template writes it out.
    writer.add_add_space_prefix(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Order a projection's rows as llama.cpp turns them for Llama: in pairs, rather than in halves."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def main() -> None:
    """Convert what the command line names."""
    parser = argparse.ArgumentParser(description="Convert the embedded reader to GGUF.")
    parser.add_argument("model", type=Path, help="directory with config, safetensors and tokenizer")
    parser.add_argument("target", type=Path, help="file to write")
    arguments = parser.parse_args()
    convert(arguments.model, arguments.target)


if __name__ == "__main__":
    main()
