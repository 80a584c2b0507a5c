"""mini-swe-agent trajectories (`*.traj.json`): all messages, and with each answer the provider's whole response.

The messages sent with a request are those in front of its answer, so bodies can be compared, as the agent kept them
(Chat form): LiteLLM may have sent them in another. `created` of a response is in whole seconds and is when the
provider began it; messages of newer versions have a `timestamp`, which is when they were made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path

from msgspec.structs import replace

from traces import rows
from traces.importers.documents import parts, shapes
from traces.importers.endpoints import provider_named
from traces.importers.fields import moment, obj, text
from traces.importers.reading import Item, calls, json_parts
from traces.lines import OnReject
from traces.schema import Call, JsonObject
from traces.wire.usage import of_response

NAME = "mini_swe_agent"
_MESSAGES = "messages"


def sniff(head: bytes) -> bool:
    """A document whose info has an agent's statistics, beside its messages."""
    return any("info.model_stats" in shape and _MESSAGES in shape for shape in shapes(head))


def read(path: Path, *, on_reject: OnReject | None = None) -> Iterator[Call]:
    """One call a message with a response, also of answers that the agent could not use."""
    return calls(json_parts(path, on_reject, _MESSAGES), partial(_calls, _Trajectory(path.stem)), on_reject)


def request(span: bytes) -> JsonObject | None:
    """The messages that stand in a span, as a Chat body."""
    document = b"[" + span + b"]"
    places = [(part.offset, part.offset + part.length) for part in parts(BytesIO(document), "")]
    messages = [rows.loads(document[start:end]) for start, end in places]
    return {"messages": [_sent(message) for message in messages if isinstance(message, dict)]}


@dataclass(slots=True)
class _Trajectory:
    """The run so far: where its first message stands, and the messages as sent, `None` once one is missing."""

    stem: str
    start: int = -1
    messages: list[JsonObject] | None = field(default_factory=list)

    def request(self, index: int) -> JsonObject | None:
        """The body that message `index` answers; unknown where one before it could not be read."""
        if self.messages is not None and len(self.messages) != index:
            self.messages = None
        return None if self.messages is None else {"messages": list(self.messages)}


def _sent(message: JsonObject) -> JsonObject:
    """A message without what the agent only kept for itself."""
    return {name: value for name, value in message.items() if name != "extra"}


def _calls(run: _Trajectory, item: Item) -> Iterator[Call]:
    if item.path != _MESSAGES:
        return
    if run.start < 0:
        run.start = item.place.offset
    before = run.request(item.index)
    if before is not None and run.messages is not None:
        run.messages.append(_sent(item.row))
    extra = obj(item.row, "extra")
    response = extra.get("response")
    if item.row.get("role") != "assistant" or not isinstance(response, dict):
        return
    yield _call(run, item, before, extra, response)


def _call(run: _Trajectory, item: Item, before: JsonObject | None, extra: JsonObject, response: JsonObject) -> Call:
    model, name = text(response, "model"), text(response, "id")
    gateway = (name or "").startswith("gen-")
    provider = "openrouter" if gateway else provider_named(None, model)
    created = moment(response.get("created"), "response.created")
    made = moment(extra.get("timestamp"), "timestamp")
    place = replace(item.place, offset=run.start, length=item.place.offset - run.start)
    return Call(
        id=name or f"{run.stem}:{item.index + 1}",
        trace=run.stem,
        provider=provider,
        started_at=created or made,
        seq=item.index + 1,
        api="chat",
        model=model,
        ended_at=made if created and made and made >= created else None,
        request=before,
        response=response,
        usage=of_response(response, provider),
        place=place,
    )
