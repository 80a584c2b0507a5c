"""The engine beside Hugging Face transformers: same machine, same weights, same prompts, one run.

    python tests/bench/bench_engine.py                 prefill 1k, 4k, 7k; decode 1, 4, 8; warm and cold first token
    python tests/bench/bench_engine.py --lengths 1000 --repeat 1 --prefix 1024     a first look
    python tests/bench/bench_engine.py --bfloat16      transformers in bfloat16 too, where the engine takes float32

All take turns, so that a busy minute hits each; figures are medians, the ratio is to transformers in the engine's own
dtype. `fast` is `serve --fast`. The last column is the share of what this machine can do at all: its products of the
model's own shapes for prefill, its reading of the weights from memory for decode.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from localmodel.engine.threads import Pace, wait_briefly

wait_briefly()

import torch  # noqa: E402

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.backend import Backend  # noqa: E402
from localmodel.engine.cache.identity import PAGE_TOKENS  # noqa: E402
from localmodel.engine.config import ModelConfig  # noqa: E402
from localmodel.engine.fast import FastBackend  # noqa: E402
from localmodel.engine.fetch import default_model  # noqa: E402
from localmodel.engine.model import PagedModel  # noqa: E402
from localmodel.engine.weights import Weights, load  # noqa: E402

BATCHES = (1, 4, 8)
NEW = 64
CHUNK = 1024
DECODED = 24
CONTEXT = 128
ENGINE, TRANSFORMERS, BFLOAT16 = "engine", "transformers", "transformers bfloat16"


@dataclass(frozen=True)
class Task:
    """A row of the table: what each side does, how many tokens that is (0: seconds count), the machine's limit."""

    name: str
    act: Callable[["Side"], float]
    tokens: int = 0
    limit: float | None = None


class Side(Protocol):
    """An engine that is measured; all give seconds."""

    def prefill(self, tokens: list[int]) -> float:
        """Compute all tokens."""
        ...

    def again(self, tokens: list[int], prefix: int) -> float:
        """Compute tokens[prefix:] behind a prefix that is cached."""
        ...

    def decode(self, batch: int, steps: int) -> float:
        """So many steps of a batch, behind a context of 128 tokens each."""
        ...


class Ours:
    """The engine's forward pass in the scheduler's chunks and at its pace."""

    def __init__(self, weights: Weights, backend: Backend | None = None) -> None:
        self.model = PagedModel(weights, backend)
        self.pace = Pace(torch.get_num_threads(), torch.set_num_threads)
        self.vocab = weights.config.vocab
        self.kv = self.model.new_kv(weights.config.context // PAGE_TOKENS + max(BATCHES) * 16)

    def prefill(self, tokens: list[int]) -> float:
        """See Side."""
        return seconds(lambda: self._compute(tokens, 0))

    def again(self, tokens: list[int], prefix: int) -> float:
        """See Side. The pages of the prefix are left from `prefill`."""
        return seconds(lambda: self._compute(tokens, prefix))

    def _compute(self, tokens: list[int], start: int) -> None:
        table = range(-(-len(tokens) // PAGE_TOKENS))
        for first in range(start, len(tokens), CHUNK):
            last = min(first + CHUNK, len(tokens))
            self.model.forward([Span(tokens[first:last], first, table, int(last == len(tokens)))], self.kv)

    def decode(self, batch: int, steps: int) -> float:
        """See Side."""
        pages = -(-(CONTEXT + steps) // PAGE_TOKENS)
        tables = [range(number * pages, (number + 1) * pages) for number in range(batch)]
        for table in tables:
            self.model.forward([Span(prompt(CONTEXT, self.vocab), 0, table)], self.kv)
        begun = time.perf_counter()
        for step in range(steps):
            spans = [Span([step + 1], CONTEXT + step, table) for table in tables]
            self.pace.run(batch, partial(self.model.forward, spans, self.kv)).argmax(-1)
        return time.perf_counter() - begun


class Theirs:
    """transformers' LlamaForCausalLM with SDPA and its dynamic cache."""

    def __init__(self, weights: Weights) -> None:
        import transformers

        self.model, self.vocab = peer(transformers, weights), weights.config.vocab
        self.past: Any = None

    def prefill(self, tokens: list[int]) -> float:
        """See Side."""
        return seconds(lambda: self._compute(tokens, None))

    def again(self, tokens: list[int], prefix: int) -> float:
        """See Side. The cache of the prefix is made once."""
        if self.past is None:
            self.past = self._compute(tokens[:prefix], None)
        taken = seconds(lambda: self._compute(tokens[prefix:], self.past))
        self.past.crop(prefix - len(tokens))
        return taken

    def _compute(self, tokens: list[int], past: Any) -> Any:
        with torch.inference_mode():
            sent = torch.tensor([tokens])
            return self.model(sent, past_key_values=past, use_cache=True, logits_to_keep=1).past_key_values

    def decode(self, batch: int, steps: int) -> float:
        """See Side."""
        with torch.inference_mode():
            first = torch.tensor([prompt(CONTEXT, self.vocab)] * batch)
            past = self.model(first, use_cache=True, logits_to_keep=1).past_key_values
            begun = time.perf_counter()
            for step in range(steps):
                found = self.model(torch.full((batch, 1), step + 1), past_key_values=past, use_cache=True)
                found.logits[:, -1].argmax(-1)
            return time.perf_counter() - begun


def peer(transformers: Any, weights: Weights) -> Any:
    """The same weights as transformers' model; q, k, v and gate, up apart again."""
    config, tensors = weights.config, weights.tensors
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=config.dim, intermediate_size=config.ffn, num_hidden_layers=config.layers,
            num_attention_heads=config.heads, num_key_value_heads=config.kv_heads, vocab_size=config.vocab,
            max_position_embeddings=config.context, rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tied,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_base}, attn_implementation="sdpa",
        )
    )  # fmt: skip
    sizes = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
    state = {"model.embed_tokens.weight": tensors["embed"], "model.norm.weight": tensors["norm"]}
    for layer in range(config.layers):
        place = f"model.layers.{layer}"
        parts = dict(zip("qkv", tensors[f"{layer}.qkv"].split(sizes), strict=True))
        state |= {f"{place}.self_attn.{name}_proj.weight": part for name, part in parts.items()}
        state[f"{place}.self_attn.o_proj.weight"] = tensors[f"{layer}.o"]
        gate, up = tensors[f"{layer}.gate_up"].chunk(2)
        state |= {f"{place}.mlp.gate_proj.weight": gate, f"{place}.mlp.up_proj.weight": up}
        state[f"{place}.mlp.down_proj.weight"] = tensors[f"{layer}.down"]
        state[f"{place}.input_layernorm.weight"] = tensors[f"{layer}.attn_norm"]
        state[f"{place}.post_attention_layernorm.weight"] = tensors[f"{layer}.ffn_norm"]
    model.load_state_dict(state, strict=False)
    return model.to(tensors["embed"].dtype).eval()


def prompt(length: int, vocab: int) -> list[int]:
    """Tokens of no meaning, the same every time."""
    return [7919 * (place + 1) % vocab for place in range(length)]


def seconds(act: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def product_speed(weights: Weights) -> float:
    """FLOP/s of this machine's best product of the model's largest shape."""
    gate_up = weights.tensors["0.gate_up"]
    rows = torch.randn(CHUNK, gate_up.shape[1]).to(gate_up.dtype)
    work = 2 * rows.shape[0] * gate_up.numel()
    with torch.inference_mode():
        return float(work / min(seconds(lambda: torch.nn.functional.linear(rows, gate_up)) for _ in range(30)))


def read_speed() -> float:
    """Bytes/s that this machine reads from memory."""
    data = torch.ones(2**26)
    return float(data.numel() * 4 / min(seconds(lambda: data.sum()) for _ in range(10)))


def prefill_limit(config: ModelConfig, length: int, flops: float) -> float:
    """Tokens/s if all multiplications ran at `flops`: matrices once a token, attention over half the length."""
    heads = (config.heads + 2 * config.kv_heads) * config.head_dim
    matrices = config.layers * config.dim * (heads + config.heads * config.head_dim + 3 * config.ffn)
    return flops / (2 * matrices + 2 * length * config.heads * config.head_dim * config.layers)


def tasks(weights: Weights, lengths: list[int], prefix: int) -> list[Task]:
    """The rows of the table."""
    config = weights.config
    flops, bandwidth = product_speed(weights), read_speed()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {weights.tensors['embed'].dtype}; this "
          f"machine: {flops / 1e9:.0f} GFLOP/s in products, {bandwidth / 1e9:.1f} GB/s from memory")  # fmt: skip
    size = sum(one.numel() * one.element_size() for one in weights.tensors.values())
    tokens = prompt(prefix + NEW, config.vocab)
    name = f"first token, {prefix} + {NEW}"
    return [
        *(Task(f"prefill {length}", partial(_prefill, prompt(length, config.vocab)), length,
               prefill_limit(config, length, flops)) for length in lengths),
        *(Task(f"decode, batch {batch}", partial(_decode, batch), batch * DECODED, batch * bandwidth / size)
          for batch in BATCHES),
        Task(f"{name}, cold", partial(_prefill, tokens)),
        Task(f"{name}, warm", partial(_again, tokens, prefix)),
    ]  # fmt: skip


def _prefill(tokens: list[int], side: Side) -> float:
    return side.prefill(tokens)


def _again(tokens: list[int], prefix: int, side: Side) -> float:
    return side.again(tokens, prefix)


def _decode(batch: int, side: Side) -> float:
    return side.decode(batch, DECODED)


def line(task: Task, sides: dict[str, Side], repeat: int) -> str:
    """Measure all sides in turns, after one run of each that does not count, and write a row of the table.

    transformers in bfloat16 is run once only: it takes minutes where the CPU does not multiply it itself.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeat + 1):
        for name, side in sides.items():
            if name != BFLOAT16 or turn == 1:
                found[name].append(task.act(side))
    medians = {name: statistics.median(taken[1:] or taken) for name, taken in found.items()}
    figures = {name: task.tokens / taken if task.tokens else taken for name, taken in medians.items()}
    cells = "".join(f"{figure:>{max(12, len(name) + 2)}.2f}" for name, figure in figures.items())
    share = "" if task.limit is None else f"{100 * figures[ENGINE] / task.limit:6.0f} %"
    ratio = medians[TRANSFORMERS] / medians[ENGINE]
    return f"{task.name:<28}{cells} {'tok/s' if task.tokens else 's':<6}{ratio:>6.2f} x {share}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 7168])
    parser.add_argument("--prefix", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--bfloat16", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # transformers renames the argument of the cache
    weights = load(default_model())
    sides: dict[str, Side] = {ENGINE: Ours(weights), TRANSFORMERS: Theirs(weights)}
    sides["engine, fast"] = Ours(weights, FastBackend())
    if asked.bfloat16:
        sides[BFLOAT16] = Theirs(load(default_model(), dtype=torch.bfloat16))
    rows = tasks(weights, asked.lengths, asked.prefix)
    print(" " * 28 + "".join(f"{name:>{max(12, len(name) + 2)}}" for name in sides) + f"{'faster':>16} of limit")
    for task in rows:
        print(line(task, sides, asked.repeat), flush=True)


if __name__ == "__main__":
    main()
