"""Train the adapter of the demo's reader: a LoRA on SmolLM2-135M-Instruct, on CPU cores.

A paragraph and all its questions are read as one tree: the prompts' common beginning once, then a branch for
each question, which sees the beginning and itself alone. So a question costs about forty tokens, not two
hundred. The base stays in bfloat16, the adapter in float32; the loss is on answers alone.

``torchrun --nproc-per-node 2 -m studies.reader.train`` takes two cores: each process has examples of its own,
and their gradients are averaged before each step.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer

from studies.reader.examples import (
    Examples,
    Group,
    held_out_titles,
    read_2wiki,
    read_hotpot,
    read_snli,
    read_squad,
)

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MAX_TOKENS, STEP = 1600, 64


class _Merged(torch.autograd.Function):
    """A linear layer whose weight holds the product already; gradients go to the two matrices alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lora: Lora, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.lora = lora
        return functional.linear(x, lora.merged)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        lora, (x,), grad = ctx.lora, ctx.saved_tensors, grads[0]
        rows, grad_rows = x.flatten(0, -2), grad.flatten(0, -2)
        grad_a = (grad_rows @ lora.low_b).T @ rows
        grad_b = grad_rows.T @ (rows @ lora.low_a.T)
        grad_x = grad @ lora.merged if ctx.needs_input_grad[0] else None
        return grad_x, None, grad_a.float(), grad_b.float() * lora.scale


class Lora(nn.Module):
    """A frozen linear layer to which the product of two small trained matrices is added.

    The sum is computed once for each step (:meth:`merge`), in the base's own precision: what is trained is
    what a merged model computes.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base
        self.scale = scale
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.merge()

    def merge(self) -> None:
        """Compute the layer's weight from the matrices as they are now."""
        weight = self.base.weight
        with torch.no_grad():
            self.low_a, self.low_b = self.a.to(weight.dtype), (self.b * self.scale).to(weight.dtype)
            self.merged = torch.addmm(weight, self.low_b, self.low_a)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output with the product added."""
        out: Tensor = _Merged.apply(x, self, self.a, self.b)  # type: ignore[no-untyped-call]
        return out


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    shared: int = 0,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention in plain products, on a CPU several times faster with a mask than the library's."""
    heads, kv_heads, length = query.shape[1], key.shape[1], query.shape[2]
    each = query.shape[3]
    outs = []
    for begin, end, seen in ((0, shared, shared), (shared, length, length)):
        if begin == end:
            continue
        rows = query[0, :, begin:end].reshape(kv_heads, -1, each) * each**-0.5
        scores = rows @ key[0, :, :seen].transpose(1, 2)
        scores = scores.view(heads, end - begin, seen)
        if mask is not None:
            scores = scores + mask[0, 0, begin:end, :seen]
        shares = scores.softmax(-1).view(kv_heads, -1, seen)
        outs.append((shares @ value[0, :, :seen]).view(heads, end - begin, each))
    return torch.cat(outs, dim=1).transpose(0, 1)[None], None


AttentionInterface.register("tree", _attention)


def add_lora(model: Any, rank: int, scale: float, first_layer: int) -> dict[str, Lora]:
    """Freeze the model and put a LoRA on every projection from a layer on; return them by name."""
    model.requires_grad_(False)
    found: dict[str, Lora] = {}
    for number, layer in enumerate(model.model.layers):
        if number < first_layer:
            continue
        for part in (layer.self_attn, layer.mlp):
            for name in PROJECTIONS:
                if hasattr(part, name):
                    lora = Lora(getattr(part, name), rank, scale)
                    setattr(part, name, lora)
                    where = "self_attn" if part is layer.self_attn else "mlp"
                    found[f"model.layers.{number}.{where}.{name}"] = lora
    return found


class Tree(NamedTuple):
    """A group of examples as the model reads it, in one row.

    Attributes:
        ids: The common beginning, then each branch: the rest of its prompt, its answer, the end token.
        positions: Where each token stands in its own prompt.
        mask: What each token sees.
        at: Tokens that predict a token of an answer, and what they should predict.
        weights: How much each of these counts.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    at: Tensor
    targets: Tensor
    weights: Tensor
    examples: int
    shared: int


class Encoder:
    """Writes prompts as tokens, and groups of examples as trees of them.

    Attributes:
        end: The token that ends an answer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def prompt(self, text: str) -> list[int]:
        """Return a prompt's tokens, up to where the answer begins."""
        turns = [{"role": "user", "content": text}]
        whole = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer(whole, add_special_tokens=False)["input_ids"])

    def answer(self, text: str) -> list[int]:
        """Return an answer's tokens, with the one that ends it."""
        return [*self._tokenizer(text, add_special_tokens=False)["input_ids"], self.end]

    def tree(self, group: Group) -> Tree | None:
        """Return a group as a tree, of as many of its examples as fit; None if none does."""
        rows = [(self.prompt(prompt), self.answer(answer)) for prompt, answer in group.pairs]
        shared = _shared([prompt for prompt, _ in rows])
        ids, positions, branch = rows[0][0][:shared], list(range(shared)), [0] * shared
        at: list[int] = []
        targets: list[int] = []
        weights: list[float] = []
        examples = 0
        for number, (prompt, answer) in enumerate(rows, start=1):
            new = [*prompt[shared:], *answer[:-1]]
            if len(ids) + len(new) > MAX_TOKENS:
                continue
            ids += new
            positions += range(shared, shared + len(new))
            branch += [number] * len(new)
            at += range(len(ids) - len(answer), len(ids))
            targets += answer
            weights += _weights(group.task, len(answer))
            examples += 1
        if not examples:
            return None
        # Rows of equal lengths take equal kernels; what fills them up sees itself alone.
        empty = -len(ids) % STEP
        ids, positions = ids + [self.end] * empty, positions + [0] * empty
        which = torch.tensor([*branch, *range(-1, -1 - empty, -1)])
        sees = (which[None, :] == which[:, None]) | ((which[None, :] == 0) & (which[:, None] >= 0))
        sees &= torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        mask = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.bfloat16).masked_fill(~sees, -1e4)
        return Tree(
            torch.tensor([ids]), torch.tensor([positions]), mask,
            torch.tensor(at), torch.tensor(targets), torch.tensor(weights), examples, shared // STEP * STEP,
        )  # fmt: skip


def _weights(task: str, length: int) -> list[float]:
    """Return how much each token of an answer counts.

    The first tokens of an extract choose where it begins; what follows is copied.
    """
    if task == "extract":
        return [0.6] * min(length, 5) + [0.03] * max(0, length - 5)
    return [length**-0.5] * length


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens all prompts begin with; at least one is left to each."""
    shortest = min(map(len, prompts)) - 1
    for place in range(shortest):
        if len({prompt[place] for prompt in prompts}) > 1:
            return place
    return shortest


def answer_losses(model: Any, tree: Tree) -> Tensor:
    """Return the loss of every token of the answers."""
    hidden = model.model(
        input_ids=tree.ids,
        position_ids=tree.positions,
        attention_mask=tree.mask.to(model.dtype),
        use_cache=False,
        shared=tree.shared,
    ).last_hidden_state
    logits = model.lm_head(hidden[0, tree.at])
    return functional.cross_entropy(logits.float(), tree.targets, reduction="none")


def check(model: Any, encoder: Encoder, groups: Iterator[Group], number: int = 12) -> float:
    """Return the largest difference between losses in trees and in separate sequences."""
    worst = 0.0
    with torch.no_grad():
        for _ in range(number):
            group = next(groups)
            tree = encoder.tree(group)
            if tree is None or tree.examples < len(group.pairs):
                continue
            model.set_attn_implementation("tree")
            together = answer_losses(model, tree)
            model.set_attn_implementation("sdpa")
            apart = []
            for prompt, answer in group.pairs:
                before, after = encoder.prompt(prompt), encoder.answer(answer)
                logits = model(input_ids=torch.tensor([[*before, *after]])).logits[0].float()
                losses = functional.cross_entropy(
                    logits[len(before) - 1 : -1], torch.tensor(after), reduction="none"
                )
                apart.append(losses)
            worst = max(worst, float((together - torch.cat(apart)).abs().max()))
    return worst


def save_adapter(loras: dict[str, Lora], path: Path) -> None:
    """Write the adapter in bfloat16; the scale is part of B, so W + B @ A is the merged weight."""
    tensors: dict[str, Tensor] = {}
    for name, lora in loras.items():
        tensors[f"{name}.a"] = lora.a.detach().bfloat16().contiguous()
        tensors[f"{name}.b"] = (lora.b.detach() * lora.scale).bfloat16().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.replace(path)


def load_adapter(loras: dict[str, Lora], path: Path) -> None:
    """Go on from a saved adapter."""
    tensors = load_file(path)
    with torch.no_grad():
        for name, lora in loras.items():
            lora.a.copy_(tensors[f"{name}.a"])
            lora.b.copy_(tensors[f"{name}.b"] / lora.scale)
            lora.merge()


def _largest(value: float) -> float:
    """Return the largest of all processes' values: they stop together."""
    tensor = torch.tensor(value)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return float(tensor)


def _average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by the mean of all processes' gradients."""
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    start = 0
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.copy_(flat[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()


def train(args: argparse.Namespace) -> None:
    """Train until the time is up; the learning rate follows a cosine over that time."""
    torch.manual_seed(args.seed)
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.base)
    encoder = Encoder(tokenizer)
    titles = held_out_titles(args.squad2, args.xquad)
    articles = {t: a for t, a in read_squad(args.squad2, args.xquad).items() if t not in titles}
    hops = [*read_hotpot(args.hotpot)[20:], *read_2wiki(args.wiki)[100:]]
    seed = args.seed * processes + rank
    groups = iter(Examples(articles, hops, read_snli(args.snli)[1000:], seed, args.unanswerable))
    if args.check:
        model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
        print("largest difference of a loss, tree and separate:", check(model, encoder, groups))
        return
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.bfloat16, attn_implementation="tree")
    loras = add_lora(model, args.rank, args.scale, args.first_layer)
    if args.resume:
        load_adapter(loras, args.resume)
    trained = [parameter for lora in loras.values() for parameter in (lora.a, lora.b)]
    optimizer = torch.optim.AdamW(trained, lr=args.rate, betas=(0.9, 0.98), weight_decay=args.decay)
    args.out.mkdir(parents=True, exist_ok=True)
    log = (args.out / "log.jsonl").open("a", encoding="utf-8")
    begun = saved = time.monotonic()
    tokens = examples = step = 0
    tasks: Counter[str] = Counter()
    recent: dict[str, list[float]] = {}
    while (progress := _largest((time.monotonic() - begun) / (60 * args.minutes))) < 1:
        rate = args.rate * max(0.03, (1 + math.cos(math.pi * progress)) / 2) * min(1.0, (step + 1) / 30)
        for parameters in optimizer.param_groups:
            parameters["lr"] = rate
        batch: list[tuple[str, Tree]] = []
        while sum(tree.ids.numel() for _, tree in batch) < args.batch:
            group = next(groups)
            tree = encoder.tree(group)
            if tree is not None:
                batch.append((group.task, tree))
        whole = sum(float(tree.weights.sum()) for _, tree in batch)
        for task, tree in batch:
            losses = answer_losses(model, tree)
            ((losses * tree.weights).sum() / whole).backward()
            recent.setdefault(task, []).append(float(losses.detach().mean()))
            tokens += tree.ids.numel()
            examples += tree.examples
            tasks[task] += tree.examples
        _average_gradients(trained)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        for lora in loras.values():
            lora.merge()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0 and rank == 0:
            row = {
                "step": step, "minutes": round((time.monotonic() - begun) / 60, 2), "tokens": tokens,
                "examples": examples, "rate": round(rate, 6), "tasks": dict(tasks),
                "loss": {task: round(sum(each) / len(each), 3) for task, each in sorted(recent.items())},
            }  # fmt: skip
            print(json.dumps(row), file=log, flush=True)
            recent = {}
        if rank == 0 and time.monotonic() - saved > 60 * args.save_every:
            save_adapter(loras, args.out / "adapter.safetensors")
            saved = time.monotonic()
    if rank:
        return
    save_adapter(loras, args.out / "adapter.safetensors")
    (args.out / "recipe.json").write_text(
        json.dumps(
            {
                "held_out": titles, "steps": step, "examples": examples, "tokens": tokens,
                "tasks": dict(tasks),
                "rank": args.rank, "first_layer": args.first_layer, "rate": args.rate, "batch": args.batch,
                "minutes": args.minutes,
                "processes": processes,
            },
            indent=1,
        )
    )  # fmt: skip


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("base", "squad2", "xquad", "hotpot", "wiki", "snli", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument(
        "--check", action="store_true", help="compare trees with separate sequences, and stop"
    )
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--save-every", type=float, default=5)
    parser.add_argument("--rank", type=int, default=24)
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--first-layer", type=int, default=10)
    parser.add_argument("--rate", type=float, default=8e-4)
    parser.add_argument("--decay", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=1300, help="tokens of a process before a step")
    parser.add_argument("--unanswerable", type=float, default=0.33, help="for each answerable question")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
