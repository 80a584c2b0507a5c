"""Finding tools by words: BM25 over names, descriptions and argument names; an exact name comes first.

k1 1.2, b 0.75 as usual; a word of the name counts three times. camelCase and snake_case are split, any alphabet works.
"""

import math
import re
from collections import Counter

from harness.wire import ToolSpec

K1, B = 1.2, 0.75
NAME_WEIGHT = 3
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Lower-case words of a text or a name; each ideograph is a word."""
    found = [word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text))]
    return [part for word in found for part in (word if _ideographs(word) else [word])]


def _ideographs(word: str) -> bool:
    return all("\u3040" <= letter <= "\u9fff" for letter in word)


def _document(spec: ToolSpec) -> Counter[str]:
    counted = Counter(words(spec.description) + _properties(spec.schema))
    for word in words(spec.name):
        counted[word] += NAME_WEIGHT
    return counted


def _properties(value: object) -> list[str]:
    """Names of all properties, `$defs` included."""
    found: list[str] = []
    if isinstance(value, dict):
        members = value.get("properties")
        if isinstance(members, dict):
            found += [word for name in members for word in words(name)]
        found += [word for child in value.values() for word in _properties(child)]
    elif isinstance(value, list):
        found += [word for child in value for word in _properties(child)]
    return found


def find(specs: list[ToolSpec], query: str, limit: int = 5) -> list[ToolSpec]:
    """The best matches, best first; equal scores by name."""
    documents = {spec.name: _document(spec) for spec in specs}
    mean = sum(sum(one.values()) for one in documents.values()) / max(1, len(documents))
    asked = words(query)
    frequency = {word: sum(word in one for one in documents.values()) for word in asked}

    def score(spec: ToolSpec) -> float:
        if spec.name.lower() == query.strip().lower():
            return math.inf
        document = documents[spec.name]
        length = K1 * (1 - B + B * sum(document.values()) / (mean or 1))
        total = 0.0
        for word in asked:
            if document[word]:
                rare = math.log(1 + (len(specs) - frequency[word] + 0.5) / (frequency[word] + 0.5))
                total += rare * document[word] * (K1 + 1) / (document[word] + length)
        return total

    ranked = sorted(((-score(spec), spec.name, spec) for spec in specs), key=lambda one: one[:2])
    return [spec for points, _, spec in ranked if points < 0][:limit]
