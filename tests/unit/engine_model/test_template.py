"""Chat templates taken apart into block segments, and the rule that a block's tokens depend on nothing beside it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="tokenizers is not installed (extra `local`)")
pytest.importorskip("jinja2", reason="jinja2 is not installed (extra `local`)")

from localmodel.engine.errors import BadTemplate
from localmodel.engine.gguf import open_gguf
from localmodel.engine.template import CHATML, ChatTemplate, for_model, learn, source_in_folder
from localmodel.engine.tokenizer import from_gguf

JOIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEFAULT = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}" + JOIN
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{{ m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'system' %}{{ '<<SYS>>' + m['content'] + '<</SYS>>' }}"
    "{% else %}{{ ' ' + m['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def test_chatml_is_learnt_with_and_without_a_default_system_text() -> None:
    assert learn(JOIN, place="t") == CHATML
    found = learn(DEFAULT, place="t")
    assert found.default_system == "<|im_start|>system\nBe kind<|im_end|>\n"
    assert found.preamble(bare=False) == ""
    assert found.preamble(bare=True) == found.default_system
    assert found.wrappers == CHATML.wrappers


def test_other_families_are_learnt() -> None:
    found = learn(LLAMA3, place="t", begin="<|begin_of_text|>")
    assert found.opening == "<|begin_of_text|>"
    assert found.wrappers["user"] == ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>")
    assert found.generation == "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert learn(ZEPHYR, place="t", end="</s>").wrappers["assistant"] == ("<|assistant|>\n", "</s>\n")
    assert learn(LLAMA2, place="t", end="</s>").wrappers["user"] == ("[INST] ", " [/INST]")


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ("{% for m in messages %}", "fails on a plain talk"),
        ("{{ raise_exception('no system') }}", "no system"),
        ("{{ messages[0].content }}", "leaves out or changes a message"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails on a plain talk"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails on a plain talk"),
        (
            "{% for m in messages %}{{ m.role + loop.index|string + m.content }}{% endfor %}",
            "unevenly|not the sum",
        ),
    ],
)
def test_templates_that_cannot_be_cut_are_refused_in_one_line(source: str, fact: str) -> None:
    with pytest.raises(BadTemplate, match=fact) as found:
        learn(source, place="t")
    assert "\n" not in str(found.value)


def test_the_default_model_reads_what_its_own_template_writes(gguf_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (oracle)")
    assert transformers
    metadata = open_gguf(gguf_path).metadata
    tokenizer = from_gguf(metadata, place="m")
    template = for_model(metadata["tokenizer.chat_template"], tokenizer, place="m")
    from jinja2 import Environment

    talk = [("user", "What is 2+2?"), ("assistant", "4."), ("user", "Sure?")]
    messages = [{"role": role, "content": content} for role, content in talk]
    text = Environment().from_string(metadata["tokenizer.chat_template"])
    whole = text.render(messages=messages, add_generation_prompt=True)
    parts = [template.segment(role, content) for role, content in talk]  # type: ignore[arg-type]
    ours = tokenizer.encode_markup(template.preamble(bare=True))
    for part in parts:
        ours += part.tokens(tokenizer)
    ours += tokenizer.encode_markup(template.generation)
    assert tokenizer.encode_markup(whole) == ours


@given(st.text(), st.text(), st.sampled_from(["system", "user", "assistant"]))
def test_a_block_cannot_reach_beyond_itself(text: str, other: str, role: str) -> None:
    segment = CHATML.segment(role, text)  # type: ignore[arg-type]
    assert (segment.content, segment.before, segment.after) == (text, *CHATML.wrappers[role])
    assert CHATML.segment(role, other).before == segment.before  # type: ignore[arg-type]


def test_tools_calls_and_results_are_text_in_the_models_own_form() -> None:
    tool = CHATML.tool({"name": "read", "input_schema": {"b": 1, "a": 2}})
    assert '{"name": "read", "input_schema": {"b": 1, "a": 2}}' in tool.content
    assert tool.before == "<|im_start|>system\n"
    call = CHATML.tool_call("read", {"path": "é"})
    assert call.content == '<tool_call>\n{"name": "read", "arguments": {"path": "é"}}\n</tool_call>'
    assert CHATML.tool_result("ok").content == "<tool_response>\nok\n</tool_response>"


def test_identity_follows_the_text() -> None:
    other = ChatTemplate(CHATML.wrappers, CHATML.generation + " ")
    assert other.identity != CHATML.identity
    assert learn(JOIN, place="t").identity == CHATML.identity


def test_sources_in_folders(tmp_path: Path) -> None:
    assert source_in_folder(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default", "template": "x"}]}')
    assert source_in_folder(tmp_path) == "x"
    (tmp_path / "chat_template.jinja").write_text("y")
    assert source_in_folder(tmp_path) == "y"
