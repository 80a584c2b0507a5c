"""Tools of MCP servers, through the official SDK (extra `mcp`).

`[mcp]` in cachewright.toml maps a name to a command line or a URL. Tools are listed once, sorted by
`mcp__server__tool`, and frozen: what a server says later about its list touches only the search index, never a
request's tools. Calls are never repeated by themselves. Descriptions come from outside and are sent as they are.
"""

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.attempt import Emit
from harness.errors import BadSetting, ToolFailed
from harness.tools.base import Tool
from harness.wire import ToolSpec
from traces.schema import JsonObject

CALL_S = 600
MOST_PAGES = 100
NAME_CHARS = 64


def servers(settings: JsonObject, folder: Path, stack: ExitStack, emit: Emit) -> list[Tool]:
    """All tools of all servers, sorted by name. Servers run until `stack` is closed; what they say on stderr goes to a
    file in `folder`. Raises `BadSetting`."""
    try:
        from anyio.from_thread import start_blocking_portal
        from mcp.client.client import Client
    except ImportError:
        raise BadSetting("[mcp] needs the MCP SDK; pip install 'cachewright[mcp]'") from None
    portal = stack.enter_context(start_blocking_portal())
    tools: list[Tool] = []
    for name, where in sorted(settings.items()):
        try:
            client = stack.enter_context(portal.wrap_async_context_manager(Client(_place(name, where, folder, stack))))
            found = portal.call(_listed, client)
        except Exception as error:  # whatever a foreign server does, the session can do without it
            emit("mcp_failed", server=name, reason=f"{type(error).__name__}: {error}")
            continue
        tools += [_tool(name, one, _caller(portal, client, one.name)) for one in found]
    return sorted(tools, key=lambda tool: tool.name)


def _place(name: str, where: object, folder: Path, stack: ExitStack) -> Any:
    """What the SDK's client takes: a URL, or the streams of a program."""
    if not isinstance(where, str) or not where.strip():
        raise BadSetting(f"mcp.{name}: want a command line or a URL, got {where!r}")
    if where.startswith(("http://", "https://")):
        return where
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command, *arguments = shlex.split(where)
    words = stack.enter_context((folder / f"mcp-{name}.log").open("a", encoding="utf-8"))
    return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=words)


async def _listed(client: Any) -> list[Any]:
    """All pages of a server's list."""
    found, cursor = [], None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return found


def _caller(portal: Any, client: Any, name: str) -> Callable[[JsonObject], str]:
    async def call(arguments: JsonObject) -> Any:
        return await client.call_tool(name, arguments, read_timeout_seconds=CALL_S)

    def run(arguments: JsonObject) -> str:
        result = portal.call(call, arguments)
        text = "\n".join(getattr(part, "text", f"({part.type} left out)") for part in result.content)
        if result.is_error:
            raise ToolFailed(text or "the server reports an error without words")
        return text

    return run


def _tool(server: str, one: Any, run: Callable[[JsonObject], str]) -> Tool:
    name = f"mcp__{server}__{one.name}"[:NAME_CHARS]
    return Tool(ToolSpec(name, one.description or one.name, dict(one.input_schema)), "run", run)
