"""A small MCP server for tests, over standard input and output."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Fails."""
    raise RuntimeError("on purpose")


if __name__ == "__main__":
    server.run("stdio")
