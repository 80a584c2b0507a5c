"""One spelling for a model's name, however a provider, a cloud or a router writes it."""

import re

_VENDOR = re.compile(r"^(?:[a-z0-9-]+\.)*anthropic\.")
_CONTEXT = re.compile(r"\[[0-9a-z]+\]$")
_REVISION = re.compile(r"(?:-v\d+)?(?::[0-9a-z.]+)*$")
_SNAPSHOT = re.compile(r"-(?:\d{8}|latest)$")
_VERSION_FIRST = re.compile(r"claude-(\d+(?:-\d+)?)-([a-z]+)")
_ZERO = re.compile(r"-0$")


def normalise(name: str) -> str:
    """`name` as the rule files spell it: lower case, no path, cloud prefix, snapshot or revision.

    `us.anthropic.claude-sonnet-4-5-20250929-v1:0` and `anthropic/claude-sonnet-4.5` give `claude-sonnet-4-5`;
    `claude-3-5-haiku-20241022` gives `claude-haiku-3-5`. The result is compared whole, never as a prefix or a
    family: rule values are not monotonic over generations. Names of other vendors only lose path and case.
    """
    text = _VENDOR.sub("", name.strip().lower().rsplit("/", 1)[-1])
    if not text.startswith("claude-"):
        return text
    text = _CONTEXT.sub("", text).split("@", 1)[0]
    text = _REVISION.sub("", text).replace(".", "-")
    text = _SNAPSHOT.sub("", text)
    if old := _VERSION_FIRST.fullmatch(text):
        text = f"claude-{old[2]}-{old[1]}"
    # `claude-opus-4-0` is the provider's alias of the model whose snapshots are named `claude-opus-4-<date>`.
    return _ZERO.sub("", text)


def matches(model: str, name: str) -> bool:
    """Whether a normalised model is the one `name` means, or one of those that a pattern such as `gpt-6*` means."""
    return model == name or (name.endswith("*") and model.startswith(name[:-1]))
