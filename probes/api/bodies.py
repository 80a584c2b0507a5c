"""Bodies of Messages requests as the probes send them: the document to be cached first, then a short question."""

from typing import Any

from traces.schema import JsonObject

QUESTION = "Reply with OK."
LONG_QUESTION = "Count from one to five hundred in words, one number a line, without any other text."
SHORT_ANSWER = 16


def text(words: str, *, mark: bool | str = False) -> JsonObject:
    """A text block; `mark` puts a cache marker on it, with that lifetime where it is "1h"."""
    block: JsonObject = {"type": "text", "text": words}
    if mark:
        ttl = {"ttl": mark} if isinstance(mark, str) else {}
        block["cache_control"] = {"type": "ephemeral", **ttl}
    return block


def messages(model: str, *, content: Any, max_tokens: int = SHORT_ANSWER, **rest: Any) -> JsonObject:
    """A streamed Messages request with one user message; `rest` are further members, in front of the messages."""
    return {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        **rest,
        "messages": [{"role": "user", "content": content}],
    }


def about(model: str, document: str, question: str = QUESTION, *, mark: bool | str = True, **rest: Any) -> JsonObject:
    """A question about a document that is marked at its end."""
    return messages(model, system=[text(document, mark=mark)], content=question, **rest)


def chat(model: str, document: str, question: str, *, max_tokens: int = SHORT_ANSWER, turns: Any = ()) -> JsonObject:
    """The same as a streamed Chat Completions request; `turns` are messages between the document and the question."""
    return {
        "model": model,
        _limit(model): max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": document}, *turns, {"role": "user", "content": question}],
    }


def _limit(model: str) -> str:
    """The name of the bound on the answer: OpenAI's newer models refuse the old one, others ignore the new one."""
    name = model.rsplit("/", 1)[-1]
    return "max_completion_tokens" if name.startswith(("gpt-", "chatgpt", "o1", "o3", "o4")) else "max_tokens"


def responses(model: str, document: str, question: str, *, max_tokens: int = SHORT_ANSWER) -> JsonObject:
    """The same as a streamed Responses request that leaves nothing stored."""
    return {
        "model": model,
        "max_output_tokens": max_tokens,
        "stream": True,
        "store": False,
        "input": [{"role": "developer", "content": document}, {"role": "user", "content": question}],
    }


def about_in(
    api: str, model: str, document: str, question: str = QUESTION, *, mark: bool = True, max_tokens: int = SHORT_ANSWER
) -> JsonObject:
    """A question about a document in any API, with a marker at the document's end where the model takes one."""
    if api == "messages":
        return about(model, document, question, mark=mark, max_tokens=max_tokens)
    body = (chat if api == "chat" else responses)(model, document, question, max_tokens=max_tokens)
    return with_breakpoint(body, api) if mark and takes_breakpoints(model) else body


def takes_breakpoints(model: str) -> bool:
    """Whether an OpenAI model takes `prompt_cache_breakpoint` (GPT-5.6 and later)."""
    return model.rsplit("/", 1)[-1].startswith(("gpt-5.6", "gpt-6"))


def with_breakpoint(body: JsonObject, api: str) -> JsonObject:
    """The same OpenAI body with a breakpoint at the end of the document, its first message."""
    place, kind = ("messages", "text") if api == "chat" else ("input", "input_text")
    first, *rest = body[place]
    content = [{"type": kind, "text": first["content"], "prompt_cache_breakpoint": {"mode": "explicit"}}]
    return {**body, place: [{**first, "content": content}, *rest]}
