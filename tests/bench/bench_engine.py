"""The engine beside Hugging Face transformers: same machine, same weights, same dtype, same prompts, one run.

    python tests/bench/bench_engine.py                 prefill 1k, 4k, 7k; decode 1, 4, 8; warm and cold first token
    python tests/bench/bench_engine.py --lengths 1000 --repeat 1 --prefix 1024     a first look

Both take turns, so that a busy minute hits both; figures are medians. The last column is the share of what this machine
can do at all: its products of the model's own shapes for prefill, its reading of the weights from memory for decode.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from localmodel.engine.threads import Pace, wait_briefly

wait_briefly()

import torch  # noqa: E402

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.cache.identity import PAGE_TOKENS  # noqa: E402
from localmodel.engine.config import ModelConfig  # noqa: E402
from localmodel.engine.fetch import default_model  # noqa: E402
from localmodel.engine.model import PagedModel  # noqa: E402
from localmodel.engine.weights import Weights, load  # noqa: E402

BATCHES = (1, 4, 8)
NEW = 64
CHUNK = 512
DECODED = 24
CONTEXT = 128


@dataclass(frozen=True)
class Row:
    """One measurement: medians of both, the machine's limit, and in what unit."""

    name: str
    ours: float
    theirs: float
    limit: float | None
    unit: str

    @property
    def text(self) -> str:
        """A line of the table; the ratio is above 1 where the engine is faster."""
        faster = self.theirs / self.ours if self.unit == "s" else self.ours / self.theirs
        share = "" if self.limit is None else f"{100 * self.ours / self.limit:6.0f} %"
        return f"{self.name:<28}{self.ours:>10.2f}{self.theirs:>14.2f} {self.unit:<6}{faster:>6.2f} x {share}"


class Ours:
    """The engine's forward pass in the scheduler's chunks and at its pace."""

    def __init__(self, weights: Weights) -> None:
        self.model = PagedModel(weights)
        self.pace = Pace(torch.get_num_threads(), torch.set_num_threads)
        self.vocab = weights.config.vocab
        self.kv = self.model.new_kv(weights.config.context // PAGE_TOKENS + max(BATCHES) * 16)

    def prefill(self, tokens: list[int], start: int = 0) -> None:
        """Compute tokens[start:]; those before it are in the pages already."""
        table = range(-(-len(tokens) // PAGE_TOKENS))
        for first in range(start, len(tokens), CHUNK):
            last = min(first + CHUNK, len(tokens))
            self.model.forward([Span(tokens[first:last], first, table, int(last == len(tokens)))], self.kv)

    def decode(self, batch: int, steps: int) -> float:
        """Seconds of so many steps of a batch, behind a context of 128 tokens each."""
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

        self.vocab = weights.config.vocab
        self.model = peer(transformers, weights)

    def prefill(self, tokens: list[int], past: Any = None) -> Any:
        """Compute the tokens behind `past`; the cache afterwards."""
        with torch.inference_mode():
            sent = torch.tensor([tokens])
            return self.model(sent, past_key_values=past, use_cache=True, logits_to_keep=1).past_key_values

    def decode(self, batch: int, steps: int) -> float:
        """As `Ours.decode`."""
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


def turns(ours: Callable[[], float], theirs: Callable[[], float], repeat: int) -> tuple[float, float]:
    """Medians of both, taken in turns after one run of each that does not count."""
    ours(), theirs()
    pairs = [(ours(), theirs()) for _ in range(repeat)]
    return statistics.median(one for one, _ in pairs), statistics.median(two for _, two in pairs)


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


def measure(lengths: list[int], prefix: int, repeat: int) -> list[Row]:
    """All rows; the two models are in memory together."""
    weights = load(default_model())
    ours, theirs, config = Ours(weights), Theirs(weights), weights.config
    flops, bandwidth = product_speed(weights), read_speed()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {ours.model.dtype_name}; this machine: "
          f"{flops / 1e9:.0f} GFLOP/s in products, {bandwidth / 1e9:.1f} GB/s from memory")  # fmt: skip
    rows = []
    for length in lengths:
        tokens = prompt(length, config.vocab)
        a, b = turns(*computing(ours, theirs, tokens), repeat)
        rows.append(Row(f"prefill {length}", length / a, length / b, prefill_limit(config, length, flops), "tok/s"))
    size = sum(one.numel() * one.element_size() for one in weights.tensors.values())
    for batch in BATCHES:
        a, b = turns(partial(ours.decode, batch, DECODED), partial(theirs.decode, batch, DECODED), repeat)
        made = batch * DECODED
        rows.append(Row(f"decode, batch {batch}", made / a, made / b, batch * bandwidth / size, "tok/s"))
    return rows + first_tokens(ours, theirs, prefix, repeat)


def computing(ours: Ours, theirs: Theirs, tokens: list[int]) -> tuple[Callable[[], float], Callable[[], float]]:
    """Both ways to compute `tokens` from nothing, timed."""
    return partial(seconds, partial(ours.prefill, tokens)), partial(seconds, partial(theirs.prefill, tokens))


def first_tokens(ours: Ours, theirs: Theirs, prefix: int, repeat: int) -> list[Row]:
    """Seconds to the first token of prefix + 64 tokens: everything computed, and the prefix cached."""
    tokens = prompt(prefix + NEW, ours.vocab)
    cold = turns(*computing(ours, theirs, tokens), repeat)
    past = theirs.prefill(tokens[:prefix])

    def again() -> float:
        taken = seconds(lambda: theirs.prefill(tokens[prefix:], past))
        past.crop(-NEW)
        return taken

    warm = turns(lambda: seconds(lambda: ours.prefill(tokens, prefix)), again, repeat)
    name = f"first token, {prefix} + {NEW}"
    return [Row(f"{name}, cold", *cold, None, "s"), Row(f"{name}, warm", *warm, None, "s")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 7168])
    parser.add_argument("--prefix", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)  # transformers renames the argument of the cache
    rows = measure(asked.lengths, asked.prefix, asked.repeat)
    print(f"{'':<28}{'engine':>10}{'transformers':>14}{'':<7}{'faster':>8} of limit")
    for row in rows:
        print(row.text)


if __name__ == "__main__":
    main()
