"""A small MCP server for tests, over standard input and output; its list changes when `grow` is called."""

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Fails."""
    raise RuntimeError("on purpose")


@server.tool()
async def grow(context: Context) -> str:
    """Changes the list: `multiply` comes, `fail` goes."""

    def multiply(a: int, b: int) -> str:
        """Multiplies two numbers."""
        return str(a * b)

    server.add_tool(multiply)
    server.remove_tool("fail")
    await context.notify_tools_changed()
    return "grown"


if __name__ == "__main__":
    server.run("stdio")
