"""`python -m localmodel.server`: what `cachewright serve` starts, its settings in the environment."""

import sys
from typing import NoReturn

WRONG_USAGE = 2


def main() -> None:
    """Serve, or say in one line why not."""
    try:
        from localmodel.server.errors import BadSettings
        from localmodel.server.serve import run
        from localmodel.server.settings import from_environment
    except ModuleNotFoundError as error:
        _stop(f"serve needs the package {error.name}, which is not installed: pip install 'cachewright[local]'")
    try:
        settings = from_environment()
        rules = f"rules {settings.rules}"
        run(settings, lambda url, model: print(f"listening on {url} (model {model}; {rules})", flush=True))
    except BadSettings as error:
        _stop(str(error))


def _stop(reason: str) -> NoReturn:
    print(f"cachewright: {' '.join(reason.splitlines())}", file=sys.stderr)  # an option's value may hold line ends
    sys.exit(WRONG_USAGE)


if __name__ == "__main__":
    main()
