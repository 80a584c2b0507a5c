"""An MCP server without the SDK, of the protocol of 2025, that behaves as its arguments say.

silent      never answers anything
dead        ends at once
twice       lists one tool twice
dies        ends while a tool runs
stuck       never answers a call
grows       a call adds a tool and sends notifications/tools/list_changed
shuffled    lists its tools in another order each time it is asked
"""

import json
import random
import sys
import time
from typing import Any

MANNERS = set(sys.argv[1:])
NAMES = ["beta", "alpha", "alpha"] if "twice" in MANNERS else ["beta", "alpha", "gamma"]


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed() -> list[dict[str, Any]]:
    names = random.sample(NAMES, len(NAMES)) if "shuffled" in MANNERS else NAMES
    return [{"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}} for name in names]


def called(name: Any) -> None:
    if "dies" in MANNERS:
        sys.exit(1)
    if "stuck" in MANNERS:
        return
    if "grows" in MANNERS and "late" not in NAMES:
        NAMES.append("late")
        say(method="notifications/tools/list_changed")
    say(id=name, result={"content": [{"type": "text", "text": "did it"}]})


if "dead" in MANNERS:
    sys.exit(3)
for line in sys.stdin:
    if "silent" in MANNERS:
        time.sleep(1000)
    asked = json.loads(line)
    method, number = asked.get("method"), asked.get("id")
    if number is None:
        continue
    if method == "initialize":
        info = {"name": "rude", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        say(id=number, result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})
    elif method == "tools/list":
        say(id=number, result={"tools": listed()})
    elif method == "tools/call":
        called(number)
    else:
        say(id=number, error={"code": -32601, "message": "Method not found"})
