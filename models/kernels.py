"""Which attention kernel a platform gets: XLA's own, cuDNN's or splash attention."""

from __future__ import annotations

import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from ..registry import ZootomyError, unknown_name
from .axes import activation_spec, parts_on
from .row_attention import BranchMask, attend_branches, attend_rows

AttentionKernel = Literal["auto", "xla", "cudnn", "splash"]
"""How packed rows attend; see `choose_kernel`."""
Kernel = Literal["xla", "cudnn", "splash"]

_LANES = 128
_NARROW = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


def choose_kernel(kernel: AttentionKernel, dtype, head_dim: int) -> Kernel:
    """The kernel of packed attention on the present platform.

    `auto` takes cuDNN's flash attention on GPUs for 16-bit arithmetic with heads of at most 128
    that are multiples of 8, splash attention on TPUs with heads that are multiples of 64, and plain
    XLA elsewhere.

    Args:
        kernel: `auto`, or the one wanted.
        dtype: of the arithmetic.
        head_dim: width of a head.

    Raises:
        UnknownNameError: for another name.
        ZootomyError: cuDNN for what it has no kernel for.
    """
    if kernel not in get_args(AttentionKernel):
        raise unknown_name("attention", kernel, get_args(AttentionKernel))
    platform = jax.default_backend()
    fits = jnp.dtype(dtype) in _NARROW and head_dim % 8 == 0 and head_dim <= _LANES
    if kernel == "auto":
        if platform == "gpu" and fits:
            return "cudnn"
        return "splash" if platform == "tpu" and head_dim % 64 == 0 else "xla"
    if kernel == "cudnn" and not fits:
        raise ZootomyError(
            "attention='cudnn' needs 16-bit arithmetic and heads of at most 128 that are multiples "
            f"of 8, got {jnp.dtype(dtype).name} and {head_dim}; use 'auto'."
        )
    if kernel == "cudnn" and platform != "gpu":
        raise ZootomyError(f"attention='cudnn' needs a GPU, this is a {platform}; use 'auto'.")
    return kernel


def packed_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    mask: jax.Array | BranchMask,
    kernel: Kernel,
) -> jax.Array:
    """Softmax attention of each token over the earlier ones of its segment, and itself.

    Args:
        q: `[R, L, heads, head_dim]`.
        k: `[R, L, kv_heads, head_dim]`; query head h reads key head h // (heads / kv_heads).
        v: the shape of `k`.
        segments: `[R, L]` int32.
        mask: what `segments` and the order allow, of branches also what they read.
        kernel: whose program; XLA's for branches, and where a mesh cuts what another needs whole:
            rows along their length, or fewer rows or heads than devices.

    Returns:
        `[R, L, heads, head_dim]` in the dtype of `q`.
    """
    if isinstance(mask, BranchMask):
        return attend_branches(q, k, v, mask)
    mesh = jax.sharding.get_abstract_mesh()
    if kernel == "xla" or parts_on(mesh, "length") > 1:
        return attend_rows(q, k, v, mask)
    if kernel == "cudnn":
        return _cudnn(q, k, v, mask)
    if mesh.size <= 1:
        return _splash(q, k, v, segments)
    if len(q) % parts_on(mesh, "rows") or k.shape[2] % parts_on(mesh, "heads"):
        return attend_rows(q, k, v, mask)
    # The compiler cannot cut the kernel, whose rows and heads know nothing of each other.
    spread = activation_spec(mesh, k.shape, "rows", None, "heads")
    inputs = (spread, spread, spread, activation_spec(mesh, segments.shape, "rows"))
    alone = jax.shard_map(_splash, in_specs=inputs, out_specs=spread, check_vma=False)
    return alone(q, k, v, segments)


def _cudnn(q, k, v, mask):
    length = q.shape[1]
    if length % 2:
        # Its backward pass wants an even length; what is added is seen by nobody else.
        q, k, v = (jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (q, k, v))
        mask = jnp.pad(mask, ((0, 0), (0, 1), (0, 1))).at[:, -1, -1].set(True)
    out = jax.nn.dot_product_attention(
        q, k, v, mask=mask[:, None], is_causal=True, implementation="cudnn"
    )
    return out[:, :length]


@functools.lru_cache(maxsize=32)
def _splash_kernel(group: int, length: int, interpret: bool):
    """One kernel a length; its tables of blocks are plain arrays, so that it can be kept."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    block = next(size for size in (512, 256, _LANES) if length % size == 0)
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block,
        block_kv_dkv=block, block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip
    mask = splash.MultiHeadMask([splash.CausalMask((length, length)) for _ in range(group)])
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mqa_single_device(
            mask=mask, block_sizes=sizes, interpret=interpret
        )


def _splash(q, k, v, segments):
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    rows, length, heads, width = q.shape
    kv_heads = k.shape[2]
    padded = -(-length // _LANES) * _LANES
    kernel = _splash_kernel(heads // kv_heads, padded, jax.default_backend() != "tpu")

    def pad(x, value=0):
        widths = [(0, 0), (0, padded - length)] + [(0, 0)] * (x.ndim - 2)
        return jnp.pad(x, widths, constant_values=value)

    queries = pad(q * width**-0.5).reshape(rows, padded, kv_heads, -1, width)
    queries = queries.transpose(0, 2, 3, 1, 4)
    keys, values = (pad(x).transpose(0, 2, 1, 3) for x in (k, v))
    ids = pad(segments, -1)
    over_heads = jax.vmap(kernel, in_axes=(0, 0, 0, None))
    out: jax.Array = jax.vmap(over_heads)(queries, keys, values, splash.SegmentIds(ids, ids))  # pyright: ignore[reportAssignmentType]
    return out.transpose(0, 3, 1, 2, 4).reshape(rows, padded, heads, width)[:, :length]
