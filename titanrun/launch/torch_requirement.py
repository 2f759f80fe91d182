"""What a light install, `titanrun-core` without PyTorch, can do and what it cannot."""

from importlib.util import find_spec

from titanrun.config.problems import problem_error
from titanrun.config.version import FULL_DISTRIBUTION, LIGHT_DISTRIBUTION


def is_torch_installed() -> bool:
    """Return whether PyTorch can be imported. It is not imported."""
    return find_spec("torch") is not None


def require_torch() -> None:
    """Raise a problem if this is a light install.

    Commands call it before they write anything, and before they start a process with torch.
    """
    if not is_torch_installed():
        raise problem_error(
            "usage", "this command needs PyTorch", hint=f"pip install {FULL_DISTRIBUTION}"
        )


def get_install_name(extra: str) -> str:
    """Return what pip installs for an extra: a light install stays light."""
    name = FULL_DISTRIBUTION if is_torch_installed() else LIGHT_DISTRIBUTION
    return f"{name}[{extra}]"
