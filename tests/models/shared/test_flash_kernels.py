"""FlashAttention 3 is used where it is installed, and nowhere else."""

import logging

import pytest
import torch
from torch.nn import attention

from titanrun.models.shared import flash_kernels
from titanrun.models.shared.flash_kernels import activate_flash_kernels

GPU = torch.device("cuda", 0)


@pytest.fixture
def activated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for a Hopper GPU with the package. Returns the kernels that were activated."""
    names: list[str] = []
    monkeypatch.setattr(flash_kernels, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "activate_flash_attention_impl", names.append)
    return names


def test_installed_kernels_are_used_on_hopper(
    activated: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert activate_flash_kernels(GPU) == "FA3"
    assert activated == ["FA3"]
    assert "attention uses FlashAttention 3" in caplog.text


def test_other_devices_keep_the_kernels_of_torch(
    activated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert activate_flash_kernels(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert activate_flash_kernels(GPU) is None
    assert activated == []


def test_nothing_is_required_of_the_installation(
    activated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash_kernels, "find_spec", lambda name: None)
    assert activate_flash_kernels(GPU) is None
    assert activated == []


def test_a_package_without_kernels_is_told_and_the_run_goes_on(
    activated: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("it does not expose FA3 forward kernels")

    monkeypatch.setattr(attention, "activate_flash_attention_impl", refuse)
    assert activate_flash_kernels(GPU) is None
    assert "cannot be used: it does not expose FA3 forward kernels" in caplog.text
