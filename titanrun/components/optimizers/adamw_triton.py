"""Triton kernels of `adamw_kernels`: AdamW on the flat numbers of a weight.

Divisions and roots are those of IEEE 754, as in torch: what the kernels wait for is memory.
"""

import triton
import triton.language as tl

# as in torchao: a block of zeros has a scale, too
SMALLEST_SCALE: tl.constexpr = tl.constexpr(1e-12)
# codes of 8 bits: a table has the number of each, then the limits between them
NUM_CODES: tl.constexpr = tl.constexpr(256)


@triton.jit
def lerp(start, end, rate):
    """Return torch.lerp, which starts from the nearer end."""
    return tl.where(rate < 0.5, start + rate * (end - start), end - (end - start) * (1 - rate))


@triton.jit
def read_grad(grad_ptr, offsets, mask, grad_scale_ptr):
    """Return the gradient in fp32, divided by the scale if there is one."""
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if grad_scale_ptr is not None:
        grad = tl.div_rn(grad, tl.load(grad_scale_ptr).to(tl.float32))
    return grad


@triton.jit
def mask_refused(mask, found_inf_ptr):
    """Return the mask of the numbers to update: none in a refused step."""
    if found_inf_ptr is not None:
        mask = mask & (tl.load(found_inf_ptr).to(tl.int32) != 1)
    return mask


@triton.jit
def store(pointers, numbers, mask):
    """Store fp32 numbers, in bf16 rounded to the nearest, between equal ones to the even."""
    if pointers.dtype.element_ty == tl.bfloat16:
        # by hand: Triton's interpreter cuts them off
        bits = numbers.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        numbers = bits.to(tl.float32, bitcast=True)
    tl.store(pointers, numbers.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def adamw_kernel(
    weight_ptr,
    grad_ptr,
    mean_ptr,
    square_ptr,
    grad_scale_ptr,
    found_inf_ptr,
    mean_rate,
    square_decay,
    square_rate,
    square_correction,
    eps,
    decay,
    step_size,
    count,
    size: tl.constexpr,
):
    """Update `size` numbers of a weight. For the numbers of the update see `AdamWStep`."""
    offsets = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    mask = mask_refused(offsets < count, found_inf_ptr)
    grad = read_grad(grad_ptr, offsets, mask, grad_scale_ptr)
    mean = tl.load(mean_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    square = tl.load(square_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    mean = lerp(mean, grad, mean_rate)
    square = square * square_decay + square_rate * grad * grad
    root = tl.sqrt_rn(tl.div_rn(square, square_correction)) + eps
    weight = weight * decay + tl.div_rn(step_size * mean, root)
    store(mean_ptr + offsets, mean, mask)
    store(square_ptr + offsets, square, mask)
    store(weight_ptr + offsets, weight, mask)


@triton.jit
def update_mean(mean, slope, rate, max_value, place, kind):
    """Update a running mean and return it in fp32.

    Args:
        mean: pointers to its numbers or codes, to the scales of blocks, and to the table of codes.
        slope: new numbers.
        rate: weight of the new numbers.
        max_value: largest number relative to its scale.
        place: offsets of numbers and of blocks, and masks of both.
        kind: format of the mean.
    """
    numbers_ptr, scales_ptr, table_ptr = mean
    offsets, blocks, mask, block_mask = place
    numbers = tl.load(numbers_ptr + offsets, mask=mask, other=0)
    if kind == "plain":
        numbers = lerp(numbers, slope, rate)
        tl.store(numbers_ptr + offsets, numbers, mask=mask)
    else:
        scales = tl.load(scales_ptr + blocks, mask=block_mask, other=1.0)
        numbers = tl.load(table_ptr + numbers.to(tl.int32)) * scales[:, None]
        numbers = lerp(numbers, slope, rate)
        largest = tl.maximum(tl.max(tl.abs(numbers), axis=1), SMALLEST_SCALE)
        scales = tl.div_rn(largest, max_value)
        tl.store(scales_ptr + blocks, scales, mask=block_mask)
        codes = encode(tl.div_rn(numbers, scales[:, None]), table_ptr, kind)
        tl.store(numbers_ptr + offsets, codes, mask=mask)
    return numbers


@triton.jit
def encode(scaled, table_ptr, kind):
    """Return codes (uint8) of numbers relative to the scale of their block."""
    if kind == "float8":
        return encode_float8(scaled)
    # the number of limits that are not above each value, as torch.bucketize(right=True)
    codes = tl.zeros(scaled.shape, tl.int32)
    for power in tl.static_range(8):
        raised = codes + (128 >> power)
        limits = tl.load(table_ptr + NUM_CODES + raised - 1)
        codes = tl.where(limits <= scaled, raised, codes)
    return codes.to(tl.uint8)


@triton.jit
def encode_float8(scaled):
    """Return the bits of e4m3 numbers, rounded to the nearest, between equal ones to the even.

    By hand: GPUs before compute capability 8.9 have no such numbers.
    """
    bits = scaled.to(tl.uint32, bitcast=True)
    absolute = bits & 0x7FFFFFFF
    # 3 bits of fraction instead of 23, and 7 instead of 127 as exponent of 1
    normal = ((absolute + 0x7FFFF + ((absolute >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # below 2^-6 numbers are multiples of 2^-9; adding 2^23 rounds to an integer
    tiny = (absolute.to(tl.float32, bitcast=True) * 512.0 + 8388608.0) - 8388608.0
    codes = tl.where(absolute < (127 - 6) << 23, tiny.to(tl.int32), normal.to(tl.int32))
    return (codes | ((bits >> 31) << 7).to(tl.int32)).to(tl.uint8)


@triton.jit
def low_bit_adamw_kernel(
    weight_ptr,
    grad_ptr,
    mean_ptr,
    mean_scales_ptr,
    mean_table_ptr,
    square_ptr,
    square_scales_ptr,
    square_table_ptr,
    grad_scale_ptr,
    found_inf_ptr,
    mean_rate,
    square_rate,
    root_correction,
    eps,
    decay,
    step_size,
    max_value,
    count,
    size: tl.constexpr,
    num_blocks: tl.constexpr,
    kind: tl.constexpr,
):
    """Update `num_blocks` blocks of `size` numbers, each with one scale of both means."""
    blocks = tl.program_id(0).to(tl.int64) * num_blocks + tl.arange(0, num_blocks)
    offsets = blocks[:, None] * size + tl.arange(0, size)[None, :]
    mask = mask_refused(offsets < count, found_inf_ptr)
    block_mask = mask_refused(blocks * size < count, found_inf_ptr)
    place = (offsets, blocks, mask, block_mask)
    grad = read_grad(grad_ptr, offsets, mask, grad_scale_ptr)
    means = (mean_ptr, mean_scales_ptr, mean_table_ptr)
    mean = update_mean(means, grad, mean_rate, max_value, place, kind)
    squares = (square_ptr, square_scales_ptr, square_table_ptr)
    square = update_mean(squares, grad * grad, square_rate, max_value, place, kind)
    root = tl.div_rn(tl.sqrt_rn(square), root_correction) + eps
    weight = tl.load(weight_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    store(weight_ptr + offsets, weight * decay + tl.div_rn(step_size * mean, root), mask)
