"""Against Hugging Face transformers with the same weights, in float32, where no rounding hides a difference.

Tolerance of logits: 1e-4 of their largest value. Greedy tokens are compared by feeding our own answer to the oracle in
one pass: if its best token after each position is ours, its greedy answer is ours.
"""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra `local`)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (oracle)")

from localmodel.engine.attention import Span  # noqa: E402
from localmodel.engine.gguf import open_gguf  # noqa: E402
from localmodel.engine.model import PagedModel  # noqa: E402
from localmodel.engine.template import CHATML  # noqa: E402
from localmodel.engine.tokenizer import TextTokenizer, from_gguf  # noqa: E402
from localmodel.engine.weights import load  # noqa: E402

TOLERANCE = 1e-4
PLACES = ["France", "Japan", "Brazil", "Kenya", "Norway", "Peru", "India", "Egypt", "Canada", "Italy"]
ASKED = [
    "What is the capital of {}?", "Write a short poem about {}.", "Give three facts about {}, as a list.",
    "Translate 'I live in {}' into French.", "def population_of_{}():",
]  # fmt: skip
PROMPTS = [ask.format(place) for place in PLACES for ask in ASKED]
SHARED = {
    "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 200, "max_position_embeddings": 512, "attn_implementation": "eager",
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def build(kind: str) -> Any:
    torch.manual_seed(4)
    if kind == "qwen2":
        found = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SHARED, tie_word_embeddings=True))
    elif kind == "qwen3":
        found = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHARED, head_dim=24))
    else:
        rope = {"rope_parameters": LLAMA3_ROPE} if kind == "llama3" else {}
        found = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHARED, **rope))
    with torch.no_grad():
        for value in found.parameters():
            value.add_(torch.randn_like(value) * 0.1)  # biases and norms are 0 and 1 otherwise
    return found.eval()


@pytest.mark.parametrize("kind", ["llama", "llama3", "qwen2", "qwen3"])
def test_folders_of_each_family_give_the_oracles_logits(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    oracle = build(kind)
    oracle.save_pretrained(tmp_path, max_shard_size="60KB")
    assert (tmp_path / "model.safetensors.index.json").is_file(), "sharded"
    model = PagedModel(load(tmp_path, dtype=torch.float32))
    tokens = torch.randint(200, (1, 150))
    with torch.no_grad():
        wanted = oracle(tokens).logits[0]
    found = model.forward([Span(tokens[0].tolist(), 0, list(range(10)), 150)], model.new_kv(10))
    assert float((found - wanted).abs().max() / wanted.abs().max()) < TOLERANCE


def test_an_untied_configuration_without_a_head_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    from localmodel.engine.errors import BadWeights

    build("qwen2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(BadWeights, match=r"lm_head\.weight is missing"):
        load(tmp_path)


@pytest.fixture(scope="module")
def loaded(gguf_path: Path) -> tuple[PagedModel, TextTokenizer]:
    tokenizer = from_gguf(open_gguf(gguf_path).metadata, place="m")
    return PagedModel(load(gguf_path, dtype=torch.float32)), tokenizer


@pytest.fixture(scope="module")
def oracle(gguf_path: Path) -> Any:
    """The same file read by the gguf package; q and k rows as transformers' own loader orders them."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (oracle)")
    pytest.importorskip("numpy", reason="numpy is not installed")
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    parts = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state = {}
    for tensor in gguf.GGUFReader(str(gguf_path)).tensors:
        value = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        stem = tensor.name.removesuffix(".weight")
        if stem in names:
            state[f"{names[stem]}.weight"] = value
            continue
        _, layer, part = stem.split(".")
        if part in ("attn_q", "attn_k"):
            heads = 9 if part == "attn_q" else 3
            value = value.reshape(heads, value.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(value.shape)
        state[f"model.layers.{layer}.{parts[part]}.weight"] = value
    config = transformers.LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    return model.eval()


def answer(model: PagedModel, prompt: list[int], count: int, ends: frozenset[int]) -> tuple[list[int], Any]:
    """Greedy tokens, and the logits that chose them."""
    kv, tokens, rows = model.new_kv(12), list(prompt), []
    rows.append(model.forward([Span(prompt, 0, range(12))], kv)[0])
    for _ in range(count):
        tokens.append(int(rows[-1].argmax()))
        if tokens[-1] in ends:
            break
        rows.append(model.forward([Span(tokens[-1:], len(tokens) - 1, range(12))], kv)[0])
    return tokens[len(prompt) :], torch.stack(rows)


def compare(loaded: tuple[PagedModel, TextTokenizer], oracle: Any, asked: str, count: int) -> None:
    model, tokenizer = loaded
    prompt = [
        *CHATML.segment("user", asked).tokens(tokenizer),
        *tokenizer.encode_markup(CHATML.generation),
    ]
    tokens, rows = answer(model, prompt, count, tokenizer.specials.ends)
    with torch.no_grad():
        wanted = oracle(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    assert wanted.argmax(-1).tolist() == tokens, asked
    assert float((rows[: len(wanted)] - wanted).abs().max() / wanted.abs().max()) < TOLERANCE, asked


@pytest.mark.parametrize("asked", PROMPTS[:5])
def test_greedy_tokens_and_logits_equal_the_oracles(
    loaded: tuple[PagedModel, TextTokenizer], oracle: Any, asked: str
) -> None:
    compare(loaded, oracle, asked, 16)


@pytest.mark.slow
def test_greedy_tokens_equal_the_oracles_for_fifty_prompts(
    loaded: tuple[PagedModel, TextTokenizer], oracle: Any
) -> None:
    assert len(set(PROMPTS)) == 50
    for asked in PROMPTS:
        compare(loaded, oracle, asked, 48)
