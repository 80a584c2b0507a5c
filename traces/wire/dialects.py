"""The request formats that become prompts, each as the same few functions; and which one a recorded body is in."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from traces.schema import JsonObject, Ttl
from traces.wire import anthropic, chat, gemini, openai, responses
from traces.wire.anthropic import Part


class Dialect(NamedTuple):
    """How one format is taken apart.

    head_key       the value that decides the head (tools and instructions)
    head_parts     parts of the head; Raises `MalformedRow`, as the others do
    items          (number of the first item behind the head, the items from there on)
    item_parts     parts of the item with a number
    stem           JSON pointer of the item with a number
    strip_marks    a part's value without markers, and the lifetime its marker asks for
    automatic      lifetime of the boundary that the provider places, `None` for none
    """

    name: str
    head_key: Callable[[JsonObject], Any]
    head_parts: Callable[[JsonObject], Iterator[Part]]
    items: Callable[[JsonObject], tuple[int, list[Any]]]
    item_parts: Callable[[Any, int], Iterator[Part]]
    stem: Callable[[Any, int], str]
    strip_marks: Callable[[JsonObject], tuple[JsonObject, Ttl | None]]
    automatic: Callable[[JsonObject], Ttl | None]
    parameters: Callable[[JsonObject], dict[str, Any]]
    parameter_paths: Mapping[str, str]

    def parts(self, body: JsonObject) -> Iterator[Part]:
        """All parts of a body in the order in which the cache sees them."""
        yield from self.head_parts(body)
        start, items = self.items(body)
        for index, item in enumerate(items, start):
            yield from self.item_parts(item, index)


MESSAGES = Dialect(
    name="messages",
    head_key=lambda body: [body.get("tools"), body.get("system")],
    head_parts=anthropic.head_parts,
    items=lambda body: (0, anthropic.messages(body)),
    item_parts=anthropic.message_parts,
    stem=lambda item, index: f"/messages/{index}",
    strip_marks=anthropic.strip_marks,
    automatic=lambda body: anthropic.mark_of(body.get("cache_control")),
    parameters=anthropic.parameters,
    parameter_paths=anthropic.PARAMETER_PATHS,
)
CHAT = Dialect(
    name="chat",
    head_key=chat.head_key,
    head_parts=chat.head_parts,
    items=chat.messages,
    item_parts=chat.message_parts,
    stem=lambda item, index: f"/messages/{index}",
    strip_marks=openai.strip_marks,
    automatic=openai.automatic,
    parameters=chat.parameters,
    parameter_paths=chat.PARAMETER_PATHS,
)
RESPONSES = Dialect(
    name="responses",
    head_key=responses.head_key,
    head_parts=responses.head_parts,
    items=responses.items,
    item_parts=responses.item_parts,
    stem=lambda item, index: "/input" if isinstance(item, str) else f"/input/{index}",
    strip_marks=openai.strip_marks,
    automatic=openai.automatic,
    parameters=responses.parameters,
    parameter_paths=responses.PARAMETER_PATHS,
)
GEMINI = Dialect(
    name="gemini",
    head_key=gemini.head_key,
    head_parts=gemini.head_parts,
    items=gemini.contents,
    item_parts=gemini.content_parts,
    stem=lambda item, index: f"/contents/{index}",
    strip_marks=lambda value: (value, None),
    automatic=lambda body: None,
    parameters=gemini.parameters,
    parameter_paths={"model": "/model"},
)
BY_NAME: Mapping[str, Dialect] = {each.name: each for each in (MESSAGES, CHAT, RESPONSES, GEMINI)}


def likely_provider(body: JsonObject) -> str:
    """Who a body alone was most likely meant for: a Chat or Responses body shows itself, others are Messages bodies."""
    if isinstance(body.get("input"), str | list):
        return "openai"
    if gemini.is_request(body):
        return "gemini"
    rows, tools = body.get("messages"), body.get("tools")
    said = rows if isinstance(rows, list) else []
    shown = any(isinstance(row, dict) and (row.get("role") in _CHAT_ROLES or "tool_calls" in row) for row in said)
    given = any(isinstance(tool, dict) and "function" in tool for tool in (tools if isinstance(tools, list) else []))
    return "openai" if (shown or given) and "system" not in body else "anthropic"


_CHAT_ROLES = (*openai.INSTRUCTIONS, "tool")


def dialect_of(body: JsonObject, provider: str, api: str | None) -> Dialect | None:
    """The format of a recorded body, `None` where it is another one or does not show its whole prompt.

    A Chat body has `messages` as a Messages body does: where no API was recorded, who was asked decides.
    """
    if anthropic.is_request(body, provider, api):
        return MESSAGES
    if isinstance(body.get("messages"), list) and api in (None, "chat"):
        return CHAT
    if isinstance(body.get("input"), str | list) and api in (None, "responses"):
        return RESPONSES if responses.shows_prompt(body) else None
    return GEMINI if gemini.is_request(body) and api in (None, "gemini") else None
