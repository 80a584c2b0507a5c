"""Errors of the server.

    ServerError           anything the server refuses, with the HTTP status and both dialects' names for it
    ├── BadRequest        400: the body, or something that the provider itself refuses
    │   └── PromptTooLong 400: the prompt does not fit into the model's window
    ├── Unauthorised      401: no key, or none of those given with --api-key
    ├── NotFound          404: no such path or model
    ├── WrongMethod       405: the path is there, the method is not
    ├── TooLarge          413: body beyond the limit
    ├── WrongEncoding     415: a content-encoding that is not read
    ├── Overloaded        529 (Anthropic) or 503 (OpenAI): the queue is full
    ├── TimedOut          504: the reply took longer than allowed
    └── BackendFailed     500: the model broke; nothing the client did
    BadSettings           the server cannot start as asked

Messages name the place, the fact with its numbers and the remedy, in that order.
"""


class BadSettings(Exception):
    """The server cannot start as asked: a script, a `--set` or a model that is no good."""


class ServerError(Exception):
    """Root of all refusals. `status` and the names by dialect; `param` is the field at fault where there is one."""

    status = 500
    openai_status: int | None = None
    anthropic_type = "api_error"
    openai_type = "server_error"
    code: str | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadRequest(ServerError):
    """The body, or something that the provider itself refuses."""

    status, anthropic_type, openai_type = 400, "invalid_request_error", "invalid_request_error"


class PromptTooLong(BadRequest):
    """The prompt does not fit into the model's window; clients parse this very wording."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int, window: int) -> None:
        super().__init__(f"prompt is too long: {tokens} tokens > {window} maximum")


class Unauthorised(ServerError):
    """No key, or none of those given with --api-key."""

    status, anthropic_type, openai_type, code = 401, "authentication_error", "invalid_request_error", "invalid_api_key"


class NotFound(ServerError):
    """No such path or model."""

    status, anthropic_type, openai_type, code = 404, "not_found_error", "invalid_request_error", "not_found"


class WrongMethod(ServerError):
    """The path is there, the method is not."""

    status, anthropic_type, openai_type = 405, "invalid_request_error", "invalid_request_error"


class TooLarge(ServerError):
    """A body beyond the limit."""

    status, anthropic_type, openai_type = 413, "request_too_large", "invalid_request_error"


class WrongEncoding(ServerError):
    """A content-encoding that is not read."""

    status, anthropic_type, openai_type = 415, "invalid_request_error", "invalid_request_error"


class Overloaded(ServerError):
    """The queue is full; clients retry after a pause."""

    status, openai_status, anthropic_type, openai_type = 529, 503, "overloaded_error", "server_error"


class TimedOut(ServerError):
    """The reply took longer than allowed."""

    status, anthropic_type, openai_type = 504, "timeout_error", "server_error"


class BackendFailed(ServerError):
    """The model broke; nothing the client did."""
