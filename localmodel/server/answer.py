"""A model's tokens as events: text as it comes, stop sequences cut out, tool calls read in the form it was trained on.

A call is `<tool_call>` JSON `</tool_call>`, the JSON an object with the name of an offered tool and its arguments.
What only looks like a call stays text.
"""

import json
from collections.abc import Callable, Collection, Iterator

from localmodel.engine.sampling import StopScanner
from localmodel.engine.scheduler import End
from localmodel.engine.tokenizer import Detokeniser
from localmodel.server.model import Event, Finished, Generation, StopReason, TextPiece, ToolPiece, ToolStart, call_id
from traces.canonical import dump
from traces.errors import MalformedRow

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_REASONS: dict[End, StopReason] = {"end": "end_turn", "enough": "stop_sequence", "length": "max_tokens"}


class Answering:
    """The answer to one request; `send` receives its events."""

    def __init__(self, request: Generation, detokeniser: Detokeniser, send: Callable[[Event], None]) -> None:
        self._detokeniser = detokeniser
        self._stops = StopScanner(request.stop)
        self._calls = Calls(() if request.choice == "none" else request.tools, request.seed)
        self._send = send
        self._tokens = 0

    def token(self, token: int) -> bool:
        """Take a token; true once a stop sequence is complete."""
        self._tokens += 1
        self._text(self._detokeniser.feed(token))
        return self._stops.found is not None

    def end(self, reason: End) -> None:
        """The model has ended."""
        if self._stops.found is None:
            self._text(self._detokeniser.flush())
        if self._stops.found is None:
            self._out(self._calls.feed(self._stops.flush()))
        self._out(self._calls.flush())
        found = _REASONS[reason] if self._stops.found is None else "stop_sequence"
        if found == "end_turn" and self._calls.made:
            found = "tool_use"
        self._send(Finished(found, self._tokens, self._stops.found))

    def _text(self, text: str) -> None:
        self._out(self._calls.feed(self._stops.feed(text)) if text else ())

    def _out(self, events: "Iterator[Event] | tuple[()]") -> None:
        for event in events:
            self._send(event)


class Calls:
    """Splits text into text and calls of `tools`; without tools everything is text."""

    def __init__(self, tools: Collection[str], seed: bytes) -> None:
        self._tools, self._seed = tools, seed
        self._scanner = StopScanner((OPEN,) if tools else ())
        self._inside: str | None = None
        self._blank = ""
        self.made = 0

    def feed(self, text: str) -> Iterator[Event]:
        """The events of this text; what may yet become a call is held back."""
        while text:
            if self._inside is None:
                yield from self._plain(self._scanner.feed(text))
                if self._scanner.found is None:
                    return
                text, self._inside = self._scanner.rest, ""
            self._inside += text
            inner, closed, text = self._inside.partition(CLOSE)
            if not closed:
                return
            self._restart()
            yield from self._call(inner)

    def flush(self) -> Iterator[Event]:
        """What was held back: a call that was never closed may still be one."""
        if self._inside is None:
            yield from self._plain(self._scanner.flush())
        else:
            inner = self._inside
            self._restart()
            yield from self._call(inner, closed=False)

    def _restart(self) -> None:
        self._inside, self._scanner = None, StopScanner((OPEN,))

    def _plain(self, text: str) -> Iterator[Event]:
        """White space goes out only with the text behind it: what stands around calls is no text block."""
        text = self._blank + text
        kept = text.rstrip() if self._tools else text
        self._blank = text[len(kept) :]
        if kept:
            yield TextPiece(kept)

    def _call(self, inner: str, *, closed: bool = True) -> Iterator[Event]:
        found = read_call(inner)
        if found is None or found[0] not in self._tools:
            yield from self._plain(OPEN + inner + (CLOSE if closed else ""))
            return
        self._blank = ""
        yield ToolStart(call_id(self._seed, self.made), found[0])
        yield ToolPiece(found[1])
        self.made += 1


def read_call(text: str) -> tuple[str, str] | None:
    """(name, arguments as compact JSON) of the text inside a call, `None` where it is none."""
    try:
        value = json.loads(text)
        name, arguments = value["name"], value.get("arguments", {})
        if isinstance(name, str) and isinstance(arguments, dict):
            return name, dump(arguments).decode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MalformedRow):
        pass
    return None
