"""The request bodies, as far as the server reads them; fields it does not know pass unread, whatever they hold.

These models validate requests and describe them in `/openapi.json`. The body itself is kept beside them, since the
order of its keys is part of what a cache sees.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from localmodel.server import shapes
from localmodel.server.errors import BadRequest
from traces.schema import JsonObject

_Name = Annotated[str, Field(min_length=1, max_length=256)]


def _whole(value: Any) -> Any:
    """JSON has one kind of number: to a JSON schema, and to clients that keep floats, 16.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Count = Annotated[int, Field(ge=0, le=2**31), BeforeValidator(_whole)]
_Instructions = Annotated[str | list[Any], WithJsonSchema(shapes.PARTS)]


def _described(**shapes_of: JsonObject) -> ConfigDict:
    """Members that are read elsewhere, for the description."""

    def add(schema: JsonObject) -> None:
        schema["properties"] |= {**shapes.SAMPLING, **shapes_of}

    return ConfigDict(json_schema_extra=add)


class Body(BaseModel):
    """What all bodies have: fields that nobody knows are no error."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: _Name = Field(description="Any name; each name has entries of its own.")


class CountTokensRequest(Body):
    """Body of `POST /v1/messages/count_tokens`."""

    messages: Annotated[list[JsonObject], WithJsonSchema(shapes.many(shapes.MESSAGE))]
    system: Annotated[str | list[Any], WithJsonSchema(shapes.SYSTEM)] | None = None
    tools: Annotated[list[JsonObject], WithJsonSchema(shapes.many(shapes.TOOL))] | None = None


class MessagesRequest(CountTokensRequest):
    """Body of `POST /v1/messages`."""

    model_config = _described()

    messages: Annotated[list[JsonObject], WithJsonSchema(shapes.many(shapes.MESSAGE, 1))]
    max_tokens: _Count = Field(description="Clamped to what the window leaves; 0 writes the cache and answers nothing.")
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    tool_choice: Annotated[JsonObject, WithJsonSchema(shapes.TOOL_CHOICE)] | None = None
    cache_control: Annotated[JsonObject, WithJsonSchema(shapes.MARK)] | None = Field(
        default=None, description="Automatic breakpoint on the last block."
    )
    diagnostics: JsonObject | None = Field(default=None, description="{previous_message_id}: compare with that call.")
    thinking: JsonObject | None = None
    output_config: Annotated[JsonObject, WithJsonSchema(shapes.OUTPUT)] | None = None


class ChatRequest(Body):
    """Body of `POST /v1/chat/completions`."""

    model_config = _described(response_format=shapes.CHAT_FORMAT, tool_choice=shapes.CHAT_CHOICE)

    messages: Annotated[list[JsonObject], WithJsonSchema(shapes.many(shapes.CHAT_MESSAGE, 1))]
    tools: Annotated[list[JsonObject], WithJsonSchema(shapes.many(shapes.CHAT_TOOL))] | None = None
    stream: bool | None = None
    stream_options: JsonObject | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stop: str | list[str] | None = None
    n: Literal[1] | None = None
    prompt_cache_key: str | None = None


class ResponsesRequest(Body):
    """Body of `POST /v1/responses`."""

    model_config = _described(text=shapes.RESPONSES_TEXT, reasoning=shapes.form(effort=shapes.TEXT))

    input: Annotated[str | list[Any], WithJsonSchema(shapes.either(shapes.TEXT, shapes.many(shapes.ITEM)))]
    instructions: _Instructions | None = None
    tools: Annotated[list[JsonObject], WithJsonSchema(shapes.many(shapes.RESPONSES_TOOL))] | None = None
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
