"""Text to tokens and back, from GGUF metadata (byte-level BPE) or a tokenizer.json, through the `tokenizers` package.

Two ways in, so that no text of a caller can forge the model's control tokens: `encode` takes content, in which names of
special tokens are ordinary letters; `encode_markup` takes the template's own text, in which they are the tokens.
"""

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from localmodel.engine.errors import BadWeights, MissingModel, UnsupportedModel

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED = 3, 4
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Specials:
    """Control tokens by name, those that end an answer, and the names that templates call bos_token and eos_token.

    `begin` is "" unless the model wants its prompts to begin with it.
    """

    names: Mapping[str, int]
    ends: frozenset[int]
    begin: str = ""
    end: str = ""


class TextTokenizer:
    """See the module. `identity` is a digest of everything the tokens of a text depend on.

    `document` is the tokenizer as the JSON text of the `tokenizers` package.
    """

    def __init__(self, tokenizer: Tokenizer, specials: Specials) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.specials = specials
        names = sorted(specials.names, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None
        self.document = document = str(tokenizer.to_str())
        self.identity = xxhash.xxh3_128_hexdigest((document + json.dumps(sorted(specials.names.items()))).encode())
        self._bytes = _byte_level() if "ByteLevel" in json.dumps(json.loads(document).get("decoder")) else None
        self._control = frozenset(specials.names.values())

    @property
    def size(self) -> int:
        """Number of tokens, special ones included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Tokens of content. Lone surrogates, which are no text, read as U+FFFD."""
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _has_surrogate(text) else text
        return list(self._tokenizer.encode(clean, add_special_tokens=False).ids)

    def encode_markup(self, text: str) -> list[int]:
        """Tokens of the template's own text, in which `<|im_start|>` is one token."""
        pieces = [text] if self._split is None else self._split.split(text)
        found: list[int] = []
        for piece in pieces:
            number = self.specials.names.get(piece)
            found.extend(self.encode(piece) if number is None else [number])
        return found

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token, perhaps part of a character; b"" for control tokens and unknown numbers."""
        piece = None if token in self._control else self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._bytes is not None:
            known = self._bytes
            return b"".join(known[char] if char in known else char.encode() for char in piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(byte[1], 16)]) if byte else str(piece).replace("\u2581", " ").encode()

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 read as U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")

    def detokeniser(self) -> "Detokeniser":
        """A decoder for one stream of tokens."""
        return Detokeniser(self)


def _has_surrogate(text: str) -> bool:
    return _SURROGATE.search(text) is not None


class Detokeniser:
    """Tokens in, text out, never a part of a character: its bytes wait for the token that completes them."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Text that this token completes, perhaps ""."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def _byte_level() -> dict[str, bytes]:
    """GPT-2's map of bytes to printable characters (openai/gpt-2, encoder.py), turned round."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    found = {chr(byte): bytes([byte]) for byte in printable}
    found.update({chr(256 + number): bytes([byte]) for number, byte in enumerate(rest)})
    return found


def from_gguf(metadata: Mapping[str, Any], *, place: str) -> TextTokenizer:
    """The tokenizer inside a GGUF file. Raises BadWeights or UnsupportedModel."""
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2":
        raise UnsupportedModel(f"{place}: tokenizer {model!r} is not byte-level BPE, use the model's folder instead")
    tokens = _strings(metadata, "tokenizer.ggml.tokens", place)
    merges = [_pair(merge) for merge in _strings(metadata, "tokenizer.ggml.merges", place)]
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or len(kinds) != len(tokens):
        raise BadWeights(f"{place}: {len(tokens)} tokens, {len(vocabulary)} different ones, {len(kinds)} types")
    try:
        bpe = models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the package raises bare exceptions
        raise BadWeights(f"{place}: the tokenizer's merges do not fit its tokens: {error}") from None
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, place)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    defined = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in defined])
    return TextTokenizer(tokenizer, _gguf_specials(metadata, tokens, {token: vocabulary[token] for token in control}))


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _strings(metadata: Mapping[str, Any], key: str, place: str) -> list[str]:
    found = metadata.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise BadWeights(f"{place}: {key} is missing or no list of texts, the file holds no tokenizer")
    return found


def _pre_tokenizer(pre: str, place: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(False)])
    if pre in ("gpt-2", "default"):
        return byte_level(False)
    digits = {"qwen2": "", "llama-bpe": "{1,3}"}.get(pre)
    if digits is None:
        raise UnsupportedModel(f"{place}: pre-tokenizer {pre!r} is not supported, use the model's folder instead")
    words = pre_tokenizers.Split(Regex(_WORDS % digits), "isolated")
    return pre_tokenizers.Sequence([words, byte_level(False, use_regex=False)])


def _gguf_specials(metadata: Mapping[str, Any], tokens: Sequence[str], names: Mapping[str, int]) -> Specials:
    ends = {number for name, number in names.items() if name in _ENDS}
    end = metadata.get("tokenizer.ggml.eos_token_id")
    begin = metadata.get("tokenizer.ggml.bos_token_id")
    wants = metadata.get("tokenizer.ggml.add_bos_token", False)

    def name(number: Any) -> str:
        return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else ""

    every = frozenset(ends | ({end} if isinstance(end, int) else set()))
    return Specials(names, every, name(begin) if wants else "", name(end))


def from_folder(folder: Path) -> TextTokenizer:
    """The tokenizer of a Hugging Face folder. Raises MissingModel or BadWeights."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise MissingModel(f"{folder}: holds no tokenizer.json, download it beside the weights")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises bare exceptions
        raise BadWeights(f"{path}: cannot be read as a tokenizer: {error}") from None
    added = json.loads(path.read_bytes()).get("added_tokens") or []
    names = {one["content"]: int(one["id"]) for one in added if one.get("special")}
    ends = {number for name, number in names.items() if name in _ENDS} | _ends(folder)
    settings = optional_json(folder / "tokenizer_config.json")

    def name(key: str) -> str:
        token = settings.get(key)
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) and text in names else ""

    return TextTokenizer(tokenizer, Specials(names, frozenset(ends), name("bos_token"), name("eos_token")))


def _ends(folder: Path) -> set[int]:
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ends = optional_json(folder / name).get("eos_token_id")
        found.update(one for one in (ends if isinstance(ends, list) else [ends]) if isinstance(one, int))
    return found


def optional_json(path: Path) -> dict[str, Any]:
    """The object in a file that a model folder may lack; {} then. Raises BadWeights if it is there and no object."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadWeights(f"{path}: is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadWeights(f"{path}: holds a {type(found).__name__}, expected an object")
    return found
