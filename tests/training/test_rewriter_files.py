"""What goes in and out as files: corpora, options, other programs' data, adapters, cards."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from surerag.prompts import REWRITE
from surerag.training.rewriter import (
    AlignOptions,
    DistilOptions,
    FineTuning,
    Lora,
    SampleOptions,
    align,
    distil,
    distil_from,
    export_pairs,
    export_rewrites,
    measure,
    read_pairs,
    read_rewrites,
)
from surerag.training.rewriter.cards import push, write_card
from surerag.training.rewriter.corpus import indexed, read_corpus
from surerag.training.rewriter.option_files import built, given_of, read_options
from surerag.training.rewriter.results import Learnt
from surerag.types import Passage
from tests.training.rewriter_models import (
    CORPUS,
    QUERIES,
    Corpus,
    Talker,
    reading,
    teaching,
    tiny_base,
)

FAST = FineTuning(learning_rate=5e-3, batch=5, epochs=2, validation=0, device="cpu")
TRIPLETS = [(query.text, f"Where was {query.text.split()[2]} born?", "no idea") for query in QUERIES]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


def test_a_corpus_from_lines_or_a_table(tmp_path: Path) -> None:
    rows = [
        {"text": "Ada was born in Velm.", "id": 7, "metadata": {"year": 1815}, "title": "Ada"},
        {"page_content": "Bo was born in Orun."},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_corpus(tmp_path / "c.jsonl")
    assert first == Passage("Ada was born in Velm.", id="7", metadata={"title": "Ada", "year": 1815})
    assert second.text == "Bo was born in Orun."
    (tmp_path / "c.csv").write_text("doc_id,content\np1,Cyr was born in Tark.\n")
    assert read_corpus(tmp_path / "c.csv") == [Passage("Cyr was born in Tark.", id="p1")]
    (tmp_path / "bad.jsonl").write_text('{"txt": "a"}\n')
    with pytest.raises(InputError, match=r"line 1: the field 'text' is missing; found 'txt'"):
        read_corpus(tmp_path / "bad.jsonl")
    with pytest.raises(InputError, match="is not there"):
        read_corpus(tmp_path / "none.jsonl")


class Counted(HashingEncoder):
    encoded = 0

    def encode(self, texts: Any, kind: Any) -> Any:
        self.encoded += len(texts) if kind == "document" else 0
        return super().encode(texts, kind)


def test_an_index_is_made_once(tmp_path: Path) -> None:
    encoder = Counted()
    first = indexed(CORPUS, encoder, tmp_path)
    again = indexed(CORPUS, encoder, tmp_path)
    assert encoder.encoded == len(CORPUS)
    np.testing.assert_array_equal(first.vectors, again.vectors)
    assert again.retrieve("Where was Dov born?", 3) == first.retrieve("Where was Dov born?", 3)
    indexed(CORPUS[:5], encoder, tmp_path)
    assert encoder.encoded == len(CORPUS) + 5, "another corpus is another index"


def test_rewrites_and_pairs_go_out_and_come_back(tmp_path: Path, base: Path) -> None:
    done = distil(QUERIES, Talker(teaching), base, tmp_path / "a", DistilOptions(FAST))
    assert export_rewrites(done.rewrites, tmp_path / "r.jsonl", REWRITE) == 10
    row = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[0])
    assert row["completion"] == [{"role": "assistant", "content": "Where was Ada born?"}]
    assert row["prompt"] == [{"role": "user", "content": REWRITE.render(query=QUERIES[0].text)}]
    rewrites = read_rewrites(tmp_path / "r.jsonl", REWRITE)
    assert rewrites[0] == (QUERIES[0].text, "Where was Ada born?")
    again = distil_from(rewrites, base, tmp_path / "b", DistilOptions(FAST))
    assert (again.model / "model.safetensors").read_bytes() == (done.model / "model.safetensors").read_bytes()
    made = align(TRIPLETS, base, tmp_path / "c", AlignOptions(fine_tuning=FAST))
    assert export_pairs(made.pairs, tmp_path / "p.jsonl", REWRITE) == 10
    assert read_pairs(tmp_path / "p.jsonl", REWRITE) == TRIPLETS
    (tmp_path / "own.csv").write_text("query,rewrite\nWhere?,Where was Ada?\n")
    assert read_rewrites(tmp_path / "own.csv", REWRITE) == [("Where?", "Where was Ada?")]
    (tmp_path / "bad.jsonl").write_text('{"query": "Where?"}\n')
    with pytest.raises(InputError, match=r"line 1: the field 'rewrite'"):
        read_rewrites(tmp_path / "bad.jsonl", REWRITE)


def test_trls_own_trainer_takes_what_is_exported(tmp_path: Path, base: Path) -> None:
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    made = align(TRIPLETS, base, tmp_path / "c", AlignOptions(fine_tuning=FAST))
    export_pairs(made.pairs, tmp_path / "p.jsonl", REWRITE)
    data = load_dataset("json", data_files=str(tmp_path / "p.jsonl"), split="train", cache_dir=str(tmp_path))
    config = DPOConfig(str(tmp_path / "trl"), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = DPOTrainer(str(base), args=config, train_dataset=data)
    assert trainer.train().global_step == 1


def test_an_adapter_is_one_of_the_first_base_through_both_stages(tmp_path: Path, base: Path) -> None:
    first = FineTuning(learning_rate=5e-3, batch=5, validation=0, epochs=2, lora=Lora(4, 8), device="cpu")
    last = FineTuning(learning_rate=5e-3, batch=5, validation=0, epochs=2, lora=Lora(2, 8), device="cpu")
    distilled = distil(QUERIES, Talker(teaching), base, tmp_path / "a", DistilOptions(first))
    made = align(TRIPLETS, distilled.model, tmp_path / "b", AlignOptions(fine_tuning=last))
    settings = json.loads((made.model / "adapter/adapter_config.json").read_text())
    assert (settings["base_model_name_or_path"], settings["r"], settings["lora_alpha"]) == (str(base), 6, 6)
    start = AutoModelForCausalLM.from_pretrained(base)
    joined = PeftModel.from_pretrained(start, str(made.model / "adapter")).merge_and_unload().state_dict()
    whole = AutoModelForCausalLM.from_pretrained(made.model).state_dict()
    assert max(float((joined[name] - whole[name]).abs().max()) for name in whole) < 1e-5
    assert (
        max(float((whole[name] - tensor).abs().max()) for name, tensor in base_weights(base).items()) > 1e-3
    )


def base_weights(base: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(base).state_dict()


YAML = """
# as users of TRL, Axolotl and LLaMA-Factory write it
model_name_or_path: Qwen/Qwen3-0.6B
learning_rate: 1e-4
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
num_train_epochs: 3
lora_r: 8
lora_target_modules: [q_proj, v_proj]
adapter: qlora
attn_implementation: flash_attention_2
optim: adamw_8bit
fsdp: full_shard
pref_beta: 0.2
align:
  least_difference: 0.5
  fine_tuning: {learning_rate: 5e-6, precompute_ref_log_probs: true}
"""


def test_options_from_a_file_as_other_programs_write_it(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(YAML.replace("precompute_ref_log_probs: true", "seed: 5"))
    given = given_of(read_options(tmp_path / "o.yaml"))
    distilling, aligning = (
        built(given, "distil", DistilOptions()),
        built(given, "align", AlignOptions()),
    )
    tuned = distilling.fine_tuning
    assert (tuned.learning_rate, tuned.batch, tuned.micro_batch, tuned.epochs) == (1e-4, 16, 2, 3)
    assert tuned.lora == Lora(8, 16, targets=("q_proj", "v_proj")) and tuned.four_bit
    assert tuned.attention == "flash_attention_2"
    assert tuned.trainer == {"optim": "adamw_8bit", "fsdp": "full_shard"}
    assert (aligning.beta, aligning.least_difference) == (0.2, 0.5)
    assert (aligning.fine_tuning.learning_rate, aligning.fine_tuning.seed) == (5e-6, 5)
    assert given.places == {"base": "Qwen/Qwen3-0.6B"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"learning_rat": 1}, r"no option 'learning_rat'.*'learning_rate' is meant"),
        ({"align": {"betta": 1}}, r"no option 'betta' of align.*'beta' is meant"),
        ({"adapter": "ia3"}, "adapter must be one of"),
    ],
)
def test_unknown_options_are_named_with_the_nearest(record: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        given_of(record)


def test_every_option_of_the_library_can_be_set_by_name() -> None:
    stages = {"distil": DistilOptions(), "sample": SampleOptions(), "align": AlignOptions()}
    for stage, options in stages.items():
        for one in fields(options):
            value = getattr(options, one.name)
            if one.name != "fine_tuning":
                assert built(given_of({f"{stage}.{one.name}": value}), stage, options) == options
        for one in fields(FineTuning) if stage != "sample" else ():
            value = getattr(options.fine_tuning, one.name)
            assert built(given_of({f"{stage}.fine_tuning.{one.name}": value}), stage, options) == options


def test_a_reference_may_be_computed_beforehand_to_the_same_weights(tmp_path: Path, base: Path) -> None:
    made = align(TRIPLETS, base, tmp_path / "a", AlignOptions(fine_tuning=FAST))
    spared = FineTuning(
        learning_rate=5e-3, batch=5, epochs=2, validation=0, device="cpu",
        trainer={"precompute_ref_log_probs": True},
    )  # fmt: skip
    other = align(TRIPLETS, base, tmp_path / "b", AlignOptions(fine_tuning=spared))
    one, two = base_weights(made.model), base_weights(other.model)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5


def test_held_out_queries_tell_a_good_rewriter_from_a_bad_one(tmp_path: Path) -> None:
    good = Talker(teaching)
    bad = Talker(lambda prompt, at: ("I cannot say.", -0.1))
    rewriters = {"bad": bad, "good": good}
    options = SampleOptions(top_n=3)
    found = measure(QUERIES, rewriters, Talker(reading), Corpus(), tmp_path, options)
    as_asked, worse, better = found.measured
    assert worse.outcomes == tuple(one._replace(rewritten=False) for one in as_asked.outcomes)
    assert (better.mean("correct"), better.mean("found"), better.mean("rewritten")) == (1.0, 1.0, 1.0)
    gap, sure = better.against(worse, "correct"), better.against(worse, "uncertainty")
    assert gap is not None and gap.low > 0 and sure is not None and sure.high < 0
    assert "| good | 0.1" in str(found) and "10 held-out queries" in str(found)
    again = Talker(reading)
    assert measure(QUERIES, rewriters, again, Corpus(), tmp_path, options) == found
    assert again.asked == []
    card = write_card(
        tmp_path, "Qwen/Qwen3-0.6B", Learnt(9, 1, 1e-4, 4, 2, 6, 2.0, 0.5), prompt="{query}", held_out=found
    ).read_text()
    assert "base_model: Qwen/Qwen3-0.6B" in card and "| good |" in card and "6 steps of 4" in card


def test_a_model_is_pushed_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    calls: list[Any] = []

    class Hub:
        def create_repo(self, name: str, **given: Any) -> str:
            calls.append((name, given))
            return f"https://hub/{name}"

        def upload_folder(self, **given: Any) -> None:
            calls.append(given)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    assert push(tmp_path, "me/rewriter") == "https://hub/me/rewriter"
    assert calls == [
        ("me/rewriter", {"private": True, "exist_ok": True}),
        {"repo_id": "me/rewriter", "folder_path": str(tmp_path)},
    ]
