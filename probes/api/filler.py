"""Texts to be cached: unlike any sent before, of any length, nearly one token a word in every vocabulary."""

import random
import secrets

WORDS = (
    "lake", "moon", "tree", "road", "wind", "fish", "bird", "hand", "door", "book", "ship", "rain", "snow", "fire",
    "gold", "iron", "milk", "salt", "sand", "rock", "leaf", "seed", "root", "hill", "farm", "town", "king", "song",
    "bell", "coat", "desk", "lamp", "map", "pen", "ring", "rope", "shoe", "star", "sun", "sky", "sea", "cat", "dog",
    "cow", "hat", "cup", "box", "bag", "bed", "car", "bus", "egg", "ice", "oil", "tea", "toy", "key", "leg", "arm",
    "eye", "ear", "lip", "bone", "wall",
)  # fmt: skip


def run_id() -> str:
    """Ten words nobody has sent before (60 bits): words, because a hex number has no steady count of tokens."""
    return " ".join(secrets.choice(WORDS) for _ in range(10))


def text(words: int, ident: str | None = None) -> str:
    """A text of `words` words that begins with a new id, so that it shares no prefix with any other."""
    ident = run_id() if ident is None else ident
    rest = random.Random(ident).choices(WORDS, k=max(0, words - 11))
    return " ".join(["Experiment", ident, *rest])
