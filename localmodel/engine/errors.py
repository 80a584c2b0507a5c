"""Errors of the engine: model files, tokenizer, template, forward pass.

    EngineError           root of all of them
    ├── MissingModel      no weights where they were looked for; the message says how to get them
    ├── BadWeights        a model file is damaged or does not hold what its header promises
    ├── UnsupportedModel  the file is sound, but this engine cannot run it (architecture, tensor type, rope scaling)
    ├── BadTemplate       a chat template cannot be taken apart into block segments
    ├── BadGrammar        a schema that answers cannot be confined to
    ├── BadLogits         the model computed no numbers to draw a token from
    ├── EngineStopped     a bug has stopped the engine; see the log
    ├── QueueFull         more requests wait than may; later there will be room
    └── BadBatch          the forward pass was called wrongly (a bug of the caller)

The page cache below has its own tree in `cache/errors.py`. Messages name the place, the fact with its numbers and the
remedy, in one line.
"""


class EngineError(Exception):
    """Root of all errors of the engine."""


class MissingModel(EngineError):
    """There are no weights where they were looked for."""


class BadWeights(EngineError):
    """A model file is damaged."""


class UnsupportedModel(EngineError):
    """A sound model that this engine cannot run."""


class BadTemplate(EngineError):
    """A chat template that cannot be taken apart into block segments."""


class BadGrammar(EngineError):
    """A schema that answers cannot be confined to, or an answer that left its grammar."""


class BadLogits(EngineError):
    """Logits that no token can be drawn from: NaN, or too large."""


class EngineStopped(EngineError):
    """A bug has stopped the engine."""


class QueueFull(EngineError):
    """More requests wait than may."""


class BadBatch(EngineError):
    """The forward pass was called with positions, tokens or pages that do not fit together."""
