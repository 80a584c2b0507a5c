"""The request bodies, as far as the server reads them; fields it does not know pass unread, whatever they hold.

These models validate requests and describe them in `/openapi.json`. The body itself is kept beside them, since the
order of its keys is part of what a cache sees.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from localmodel.server.errors import BadRequest
from traces.schema import JsonObject

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Count = Annotated[int, Field(ge=0, le=2**31)]


class Body(BaseModel):
    """What all bodies have: fields that nobody knows are no error."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: _Name = Field(description="Any name; each name has entries of its own.")


class CountTokensRequest(Body):
    """Body of `POST /v1/messages/count_tokens`."""

    messages: list[JsonObject]
    system: str | list[Any] | None = None
    tools: list[JsonObject] | None = None


class MessagesRequest(CountTokensRequest):
    """Body of `POST /v1/messages`."""

    max_tokens: _Count = Field(description="Clamped to what the window leaves; 0 writes the cache and answers nothing.")
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    tool_choice: JsonObject | None = None
    cache_control: JsonObject | None = Field(default=None, description="Automatic breakpoint on the last block.")
    diagnostics: JsonObject | None = Field(default=None, description="{previous_message_id}: compare with that call.")
    thinking: JsonObject | None = None
    output_config: JsonObject | None = None


class ChatRequest(Body):
    """Body of `POST /v1/chat/completions`."""

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: str | list[str] | None = None
    n: Literal[1] | None = None
    prompt_cache_key: str | None = None


class ResponsesRequest(Body):
    """Body of `POST /v1/responses`."""

    input: str | list[Any]
    instructions: str | list[Any] | None = None
    tools: list[JsonObject] | None = None
    stream: bool | None = None
    max_output_tokens: _Count | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: JsonObject | None = None


Request = TypeVar("Request", bound=Body)


def parse(kind: type[Request], body: JsonObject) -> Request:
    """The checked form of `body`. Raises `BadRequest` naming the first field that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise BadRequest(f"{place}: {first['msg']}", place) from None
