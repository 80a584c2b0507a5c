"""Metrics and spans of recorded calls."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from proxying import Connection, answer, post, proxied, read_reply, recorded, upstream

USAGE = {"input_tokens": 3, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 7}
REPLY = {"id": "msg_1", "type": "message", "model": "m-1", "stop_reason": "end_turn", "content": [], "usage": USAGE}


def replies(connection: Connection) -> None:
    connection.request()
    connection.send(answer(json.dumps(REPLY).encode()))
    connection.request()
    connection.send(answer(b'{"error":{"type":"overloaded_error"}}', status="529 X"))
    connection.request()
    connection.send(answer(b"{}"))


def asked(db: Path) -> str:
    """The page of metrics after a good call, a refused one and a list of models."""
    with upstream(replies) as url, proxied(db, url) as proxy:
        with proxy.client() as client:
            body = b'{"model":"m","messages":[{"role":"user","content":"PROMPTMARK"}]}'
            for _ in range(2):
                client.sendall(post("/run/r/agent/a/v1/messages", body))
                read_reply(client)
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
            read_reply(client)
        while proxy.proxy.recorder.health.stored < 3:
            time.sleep(0.01)
        with urllib.request.urlopen(f"{proxy.url}/metrics") as page:
            return str(page.read().decode())


def test_metrics(tmp_path: Path) -> None:
    page = asked(tmp_path / "a.db")
    lines = page.splitlines()
    assert 'cachewright_proxy_calls_total{api="messages",result="complete",status="200"} 1' in lines
    assert 'cachewright_proxy_calls_total{api="messages",result="error",status="529"} 1' in lines
    assert 'cachewright_proxy_calls_total{api="other",result="complete",status="200"} 1' in lines
    assert 'cachewright_proxy_tokens_total{provider="anthropic",class="read"} 20' in lines
    assert 'cachewright_proxy_tokens_total{provider="anthropic",class="uncached"} 3' in lines
    assert "cachewright_proxy_calls_without_usage_total 1" in lines
    assert "cachewright_proxy_waiting_calls 0" in lines
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines)
    assert [one.path for one in recorded(tmp_path / "a.db")].count("/metrics") == 0


def test_spans_have_current_names_and_no_content(tmp_path: Path) -> None:
    exporting = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="no extra `otlp`")
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

    from harness.recorder.otlp import Spans

    asked(tmp_path / "a.db")
    exporter: Any = exporting.InMemorySpanExporter()
    with Spans(exporter) as spans:
        for exchange in recorded(tmp_path / "a.db"):
            spans.take(exchange)
    good, refused = exporter.get_finished_spans()
    assert good.name == "chat m"
    assert good.attributes["gen_ai.usage.input_tokens"] == 33
    assert good.attributes["gen_ai.usage.cache_read.input_tokens"] == 20
    assert good.attributes["gen_ai.usage.cache_creation.input_tokens"] == 10
    assert good.attributes["gen_ai.response.finish_reasons"] == ("end_turn",)
    assert good.attributes["gen_ai.agent.name"] == "a"
    assert good.end_time > good.start_time
    assert refused.attributes["error.type"] == "529"
    assert "gen_ai.usage.input_tokens" not in refused.attributes
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for name in good.attributes if name.startswith("gen_ai.")}
    assert used <= known
    assert "PROMPTMARK" not in good.to_json()
