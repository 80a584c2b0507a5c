"""What the parts of a request look like, for `/openapi.json`: JSON schemas of blocks, messages, items and tools.

They describe and do not validate: the checks of single parts stand where those are read, with messages of their own.
Whatever else an object holds is accepted and passes as it is.
"""

from traces.schema import JsonObject

TEXT: JsonObject = {"type": "string"}
ANY_OBJECT: JsonObject = {"type": "object"}


def form(required: str = "", /, **properties: JsonObject) -> JsonObject:
    """An object with these members, of which those named in `required` must be there."""
    return {"type": "object", "required": required.split(), "properties": properties}


def one_of(*words: str) -> JsonObject:
    """One of these texts."""
    return {"type": "string", "enum": list(words)}


def either(*shapes: JsonObject) -> JsonObject:
    """Any of these shapes."""
    return {"anyOf": list(shapes)}


def many(shape: JsonObject, least: int = 0) -> JsonObject:
    """A list of at least `least` of these."""
    return {"type": "array", "items": shape, "minItems": least}


NULL: JsonObject = {"type": "null"}
MARK = either(form("type", type=one_of("ephemeral"), ttl=one_of("5m", "1h")), NULL)
SCHEMA = form(type=one_of("object"), properties=ANY_OBJECT, required=many(TEXT))

# Anthropic Messages.
TEXT_BLOCK = form("type text", type=one_of("text"), text={"type": "string", "minLength": 1}, cache_control=MARK)
SYSTEM = either(TEXT, many(TEXT_BLOCK))
BLOCK = either(
    TEXT_BLOCK,
    form("type source", type=one_of("image", "document"), source=ANY_OBJECT, cache_control=MARK),
    form("type thinking", type=one_of("thinking"), thinking=TEXT, signature=TEXT, cache_control=NULL),
    form("type id name input", type=one_of("tool_use"), id=TEXT, name=TEXT, input=ANY_OBJECT, cache_control=MARK),
    form("type tool_use_id", type=one_of("tool_result"), tool_use_id=TEXT, cache_control=MARK,
         content=either(TEXT, many(form("type text", type=one_of("text"), text=TEXT)))),
)  # fmt: skip
MESSAGE = form("role content", role=one_of("user", "assistant", "system"), content=either(TEXT, many(BLOCK)))
TOOL = form("name input_schema", name=TEXT, description=TEXT, input_schema=SCHEMA, cache_control=MARK)
TOOL_CHOICE = form("type", type=one_of("auto", "any", "tool", "none"), name=TEXT)
OUTPUT = form(effort=one_of("low", "medium", "high"), format=form("type", type=one_of("json_schema"), schema=SCHEMA))

# The OpenAI dialects.
PART = either(
    form("type text", type=one_of("text", "input_text", "output_text"), text=TEXT, prompt_cache_breakpoint=ANY_OBJECT),
    form("type image_url", type=one_of("image_url", "input_image"), image_url=either(TEXT, form("url", url=TEXT))),
)
PARTS = either(TEXT, many(PART))
ARGUMENTS = form("name arguments", name=TEXT, arguments=TEXT)
CALL = form("id type function", id=TEXT, type=one_of("function"), function=ARGUMENTS)
CHAT_MESSAGE = form(
    "role content", role=one_of("system", "developer", "user", "assistant", "tool"), content=either(PARTS, NULL),
    tool_calls=either(many(CALL), NULL), tool_call_id=TEXT, reasoning_content=TEXT,
)  # fmt: skip
CHAT_TOOL = form("type function", type=one_of("function"), function=form("name", name=TEXT, parameters=SCHEMA))
CHAT_FORMAT = form("type", type=one_of("text", "json_object", "json_schema"), json_schema=form(schema=SCHEMA))
CHAT_CHOICE = either(one_of("auto", "none", "required"), form("type function", type=one_of("function"),
                                                              function=form("name", name=TEXT)))  # fmt: skip
ITEM = either(
    form("role content", type=one_of("message"), role=one_of("system", "developer", "user", "assistant"),
         content=PARTS),
    form("type call_id name arguments", type=one_of("function_call"), call_id=TEXT, name=TEXT, arguments=TEXT),
    form("type call_id output", type=one_of("function_call_output"), call_id=TEXT, output=PARTS),
    form("type", type=one_of("reasoning"), encrypted_content=TEXT, summary=many(ANY_OBJECT)),
)  # fmt: skip
RESPONSES_TOOL = form("type name", type=one_of("function"), name=TEXT, parameters=SCHEMA)
RESPONSES_TEXT = form(format=form("type", type=one_of("text", "json_object", "json_schema"), schema=SCHEMA))

SAMPLING: JsonObject = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 0, "maximum": 2**31},
    "seed": {"type": "integer", "minimum": -(2**63), "maximum": 2**63},
}
