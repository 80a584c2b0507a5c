"""What JSON bodies of all formats are checked for: a list where one is wanted, and the words for what stands there."""

from typing import Any

from traces.errors import MalformedRow
from traces.schema import JsonObject

_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def described(value: Any) -> str:
    """What a value is, in words."""
    return _WORDS.get(type(value), "null")


def list_at(body: JsonObject, key: str) -> list[Any]:
    """The list at `key`, empty where it is absent. Raises `MalformedRow` where it is no list."""
    found = body.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise MalformedRow(f"{key} is {described(found)}, it should be a list")
    return found
