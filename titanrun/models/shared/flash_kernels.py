"""Optional kernels of torch's flash attention."""

import logging
from importlib.util import find_spec

import torch
from torch.nn import attention

FLASH_ATTENTION_3 = "FA3"
# the package with the kernels of FlashAttention 3, which is built from source
FLASH_ATTENTION_3_MODULE = "flash_attn_interface"
HOPPER = 9
log = logging.getLogger(__name__)


def activate_flash_kernels(device: torch.device) -> str | None:
    """Let torch's flash attention use FlashAttention 3, where it is installed.

    Its kernels are for compute capability 9. varlen attention uses them, and
    scaled_dot_product_attention where cuDNN does not support the shapes.

    Returns:
        The name of the kernels in use, None for those that are part of torch.
    """
    if (
        device.type != "cuda"
        or find_spec(FLASH_ATTENTION_3_MODULE) is None
        or torch.cuda.get_device_capability(device)[0] != HOPPER
        or FLASH_ATTENTION_3 not in attention.list_flash_attention_impls()
    ):
        return None
    try:
        attention.activate_flash_attention_impl(FLASH_ATTENTION_3)
    except (ImportError, RuntimeError) as error:
        log.warning("FlashAttention 3 is installed but cannot be used: %s", error)
        return None
    log.info("attention uses FlashAttention 3")
    return FLASH_ATTENTION_3
