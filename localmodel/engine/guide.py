"""Decoding confined to a grammar, by the package `llguidance`: tool calls that are forced, JSON that is demanded.

llguidance was chosen over xgrammar and outlines-core: 3 MB, one wheel for all Pythons, no dependencies (xgrammar wants
transformers), and it compiles the grammar of a tool in 2 ms.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import Any

import torch

from localmodel.engine.errors import BadGrammar
from localmodel.engine.tokenizer import TextTokenizer

_BITS = 8
_KEEP = 64
# One way to write each value, the way the model was trained on: a small model given free white space never ends it.
_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Guide:
    """One answer's place in its grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def confine(self, logits: torch.Tensor) -> None:
        """Make all tokens that may not come next impossible; logits [vocab], changed in place."""
        mask = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (mask[:, None] >> torch.arange(_BITS, dtype=torch.uint8)) & 1
        forbidden = torch.ones(len(logits), dtype=torch.bool)
        known = min(len(logits), bits.numel())
        forbidden[:known] = bits.view(-1)[:known] == 0
        if bool(forbidden.all()):
            raise BadGrammar(f"the grammar allows no token here: {self._matcher.get_error() or 'it has ended'}")
        logits.masked_fill_(forbidden.to(logits.device), -torch.inf)

    def take(self, token: int) -> None:
        """The token that was chosen. Raises BadGrammar if it was not allowed."""
        if not self._matcher.consume_token(token):
            raise BadGrammar(f"token {token} was not allowed: {self._matcher.get_error()}")


class Guides:
    """Compiles grammars for one tokenizer; the latest ones are kept. May be used from any thread."""

    def __init__(self, tokenizer: TextTokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._known: dict[str, Any] = {}
        self._lock = Lock()

    @cached_property
    def _vocabulary(self) -> Any:
        from llguidance import LLTokenizer

        ends = sorted(self._tokenizer.specials.ends)
        return LLTokenizer(self._tokenizer.document, n_vocab=self._vocab, eos_token=ends)

    def guide(self, grammar: str) -> Guide:
        """A guide at the start of a grammar in llguidance's Lark form. Raises BadGrammar."""
        with self._lock:
            return Guide(self._compiled(grammar).deep_copy())

    def _compiled(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        matcher = self._known.get(grammar)
        if matcher is None:
            matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
            if matcher.is_error():
                raise BadGrammar(str(matcher.get_error()).splitlines()[0][:300])
            while len(self._known) >= _KEEP:
                del self._known[next(iter(self._known))]
            self._known[grammar] = matcher
        return matcher


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Grammar of one JSON value that satisfies `schema`."""
    return f"start: value\nvalue: {_json(schema)}\n"


def tools_grammar(schemas: Mapping[str, Any], *, before: str, between: str, after: str) -> str:
    """Grammar of one call of one of several tools (name -> schema of its arguments).

    `before` stands in front of the name (as JSON text), `between` in front of the arguments, `after` behind them.
    """
    rules = [f"call_{number}" for number in range(len(schemas))]
    lines = [f"start: {' | '.join(rules)}"]
    for rule, (name, schema) in zip(rules, schemas.items(), strict=True):
        head = json.dumps(before + json.dumps(name, ensure_ascii=False) + between, ensure_ascii=False)
        wanted = schema if isinstance(schema, dict) else {"type": "object"}
        lines += [f"{rule}: {head} {rule}_arguments {json.dumps(after)}", f"{rule}_arguments: {_json(wanted)}"]
    return "\n".join(lines) + "\n"


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _FORM})
