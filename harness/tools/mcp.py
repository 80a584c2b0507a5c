"""Tools of MCP servers, through the official SDK (extra `mcp`).

`[mcp]` in cachewright.toml maps a name to a command line or a URL. A server's tools are listed when the session begins,
sorted by `mcp__server__tool`; what the request says of them is frozen then. When a server tells that its list has
changed it is listed again, and that touches only what a search finds and what can be called. Calls are never repeated
by themselves. Descriptions come from outside and are sent as they are.
"""

import re
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

from harness.attempt import Emit
from harness.errors import BadSetting, ToolFailed
from harness.tools.base import Tool
from harness.wire import ToolSpec
from traces.canonical import dump
from traces.schema import JsonObject

ANSWER_S = 30
CALL_S = 600
MOST_PAGES = 100
NAME_CHARS = 64
LISTEN_AGAIN_S = (1, 5, 25)
"""Pauses before a server is asked again to tell of changes, where the connection for that broke."""

_ODD = re.compile(r"[^A-Za-z0-9_-]")

Relist: TypeAlias = Callable[[str, list[Tool]], list[str]]
"""(server, its whole list as it is now) -> names that are new. Later lists come from a thread of the SDK's."""


def servers(settings: JsonObject, folder: Path, stack: ExitStack, emit: Emit, relist: Relist) -> None:
    """Start all servers; `relist` gets the tools of each, now and after each change. They run until `stack` is closed;
    what they say on stderr goes to a file in `folder`. Raises `BadSetting`; a server that does not answer is an event,
    and the session goes on."""
    try:
        from anyio.from_thread import start_blocking_portal

        places = {name: _place(name, where, folder, stack) for name, where in sorted(settings.items())}
    except ImportError:
        raise BadSetting("[mcp] needs the MCP SDK; pip install 'cachewright[mcp]'") from None
    portal = stack.enter_context(start_blocking_portal())
    for name, place in places.items():
        try:
            _Server(name, portal, emit, relist).start(place, stack)
        except Exception as error:  # whatever a foreign server does, the session can do without it
            emit("mcp_failed", server=name, reason=f"{name}: {_reason(error)}")


def _place(name: str, where: object, folder: Path, stack: ExitStack) -> Any:
    """What the SDK's client takes: a URL, or the streams of a program."""
    wanted = f"mcp.{name}: want a command line or a URL, got {where!r}"
    if not isinstance(where, str) or not where.strip():
        raise BadSetting(wanted)
    if where.startswith(("http://", "https://")):
        return where
    from mcp.client.stdio import StdioServerParameters, stdio_client

    try:
        command, *arguments = shlex.split(where)
    except ValueError as error:
        raise BadSetting(f"{wanted} ({error})") from None
    words = stack.enter_context((folder / f"mcp-{_ODD.sub('_', name)}.log").open("a", encoding="utf-8"))
    return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=words)


class _Server:
    """One server: connected, listed, and listened to. Coroutines run in the portal's thread."""

    def __init__(self, name: str, portal: Any, emit: Emit, relist: Relist) -> None:
        import anyio

        self.name, self._portal, self._emit, self._relist = name, portal, emit, relist
        self._client: Any = None
        self._news = anyio.Event()

    def start(self, place: Any, stack: ExitStack) -> None:
        """Connect and list. Raises whatever the SDK does."""
        from mcp.client.client import Client

        client = Client(place, message_handler=self._heard, read_timeout_seconds=ANSWER_S)
        self._client = stack.enter_context(self._portal.wrap_async_context_manager(client))
        self._relist(self.name, self._portal.call(self._listed))
        for task in (self._listen, self._follow):
            stack.callback(self._portal.start_task_soon(task).cancel)

    async def _heard(self, message: object) -> None:
        """Servers of protocol versions before 2026-07-28 send changes unasked."""
        import mcp_types

        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._news.set()

    async def _listen(self) -> None:
        """Later versions tell of changes where they are asked to."""
        import anyio
        import mcp_types
        from mcp.client.subscriptions import ListenNotSupportedError

        for pause in (*LISTEN_AGAIN_S, None):
            try:
                async with self._client.listen(tools_list_changed=True) as events:
                    self._news.set()  # what changed before there was somebody to hear it
                    async for _ in events:
                        self._news.set()
            except ListenNotSupportedError:
                return
            except Exception as error:
                if getattr(error, "code", None) == mcp_types.METHOD_NOT_FOUND:
                    return
                if pause is None:
                    self._failed(f"changes of its tools are not told any more ({_reason(error)})")
            await anyio.sleep(pause or 0)

    async def _follow(self) -> None:
        """After each change the whole list is read anew: a notification does not say what changed."""
        import anyio

        while True:
            await self._news.wait()
            self._news = anyio.Event()
            try:
                new = self._relist(self.name, await self._listed())
                if new:
                    self._emit("mcp_changed", server=self.name, new=new)
            except Exception as error:
                self._failed(_reason(error))

    def _failed(self, reason: str) -> None:
        self._emit("mcp_failed", server=self.name, reason=f"{self.name}: {reason}")

    async def _listed(self) -> list[Tool]:
        """All pages of the list. Of two tools with one name the first counts, and that is said."""
        found: dict[str, Tool] = {}
        cursor = None
        for _ in range(MOST_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            for one in page.tools:
                tool = self._tool(one)
                if found.setdefault(tool.name, tool) is not tool:
                    self._emit("remark", text=f"MCP server {self.name} lists {one.name!r} twice; the first counts")
            cursor = page.next_cursor
            if not cursor:
                break
        return list(found.values())

    def _tool(self, one: Any) -> Tool:
        spec = ToolSpec(tool_name(self.name, one.name), one.description or one.name, dict(one.input_schema))
        return Tool(spec, "run", lambda arguments: self._call(one.name, arguments), source=self.name)

    def _call(self, name: str, arguments: JsonObject) -> str:
        async def call() -> Any:
            return await self._client.call_tool(name, arguments, read_timeout_seconds=CALL_S)

        waiting = self._portal.start_task_soon(call)
        try:
            result = waiting.result()
        except Exception as error:
            raise ToolFailed(f"MCP server {self.name}: {_reason(error)}; the call may have had an effect") from None
        except BaseException:  # Ctrl-C: nobody waits for the answer any more
            waiting.cancel()
            raise
        text = "\n".join(getattr(part, "text", f"({part.type} left out)") for part in result.content)
        if not result.content and result.structured_content is not None:
            text = dump(result.structured_content).decode()
        if result.is_error:
            raise ToolFailed(text or "the server reports an error without words")
        return text


def tool_name(server: str, tool: str) -> str:
    """`mcp__server__tool` in the letters and the length that all APIs take; what had to be changed is told apart by a
    digest, so that two long names stay two."""
    whole = f"mcp__{server}__{tool}"
    name = _ODD.sub("_", whole)
    if name == whole and len(name) <= NAME_CHARS:
        return name
    mark = blake2b(whole.encode(errors="replace"), digest_size=4).hexdigest()
    return f"{name[: NAME_CHARS - len(mark) - 1]}_{mark}"


def _reason(error: BaseException) -> str:
    """The innermost error in words: the SDK's task groups wrap theirs."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
