"""How much a token counts: weights over the whole mini-batch, computed once.

The loss is the sum of weight times loss over all tokens. Because the weights know the whole
mini-batch, any split of it into micro-batches has the same gradient.

Rows without an action do not count as sequences, nor groups without an action as prompts, unless
`count_empty` says so. Without a single action all weights are 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..registry import ZootomyError, register
from .checks import above, rank
from .statistics import dense_ids, group_sum, safe_divide


def enter(block: str, mask: jax.Array, group_ids: jax.Array | None) -> jax.Array:
    """The mask as float32 zeros and ones, after shape checks."""
    rank(block, "mask", mask, "N, T")
    if group_ids is not None and group_ids.shape != mask.shape[:1]:
        raise ZootomyError(
            f"{block}: group_ids must be [N] = [{mask.shape[0]}], "
            f"got shape {list(group_ids.shape)}."
        )
    return (mask > 0).astype(jnp.float32)


def sequences(actions: jax.Array, count_empty: bool) -> jax.Array:
    """How many rows count: those with an action, or all of them."""
    if count_empty:
        return jnp.float32(actions.shape[0])
    return (actions.sum(1) > 0).astype(jnp.float32).sum()


@register(
    "aggregation", "token_mean", aliases=("token-mean", "dapo", "bnpo"), paper="arXiv:2503.14476"
)
def token_mean(mask: jax.Array, group_ids: jax.Array | None) -> jax.Array:
    """Every action of the mini-batch counts the same.

        w_t = 1 / Σ m

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` not used.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Source: Yu et al. 2025, DAPO, arXiv:2503.14476, equation 8.
    """
    actions = enter("token_mean", mask, group_ids)
    return safe_divide(actions, actions.sum())


@register("aggregation", "token_sum", aliases=("token-sum",))
def token_sum(mask: jax.Array, group_ids: jax.Array | None, *, divisor: float = 1.0) -> jax.Array:
    """Every action counts the same, over a divisor that the mini-batch does not change.

    The gradient grows with the tokens of a mini-batch. A divisor of the tokens aimed at keeps
    the step's size where a filter leaves a batch of any size.

        w_t = 1 / divisor

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` not used.
        divisor: what the sum is divided by, e.g. the tokens a mini-batch should have.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Raises:
        ZootomyError: if `divisor` is not positive.

    Source: verl's token-sum; Tunix's sequence-mean-token-sum-norm with its `norm`.
    """
    above("token_sum", "divisor", divisor)
    return enter("token_sum", mask, group_ids) / divisor


@register(
    "aggregation",
    "sequence_mean_token_mean",
    aliases=("seq-mean-token-mean", "seq_mean_token_mean", "grpo"),
    paper="arXiv:2402.03300",
)
def sequence_mean_token_mean(
    mask: jax.Array, group_ids: jax.Array | None, *, count_empty: bool = False
) -> jax.Array:
    """Every sequence counts the same, and every action of it.

    N counts rows with an action, as in verl, OpenRLHF and Tunix; TRL and SkyRL count all rows
    (`count_empty=True`), so that their loss shrinks with each row that is masked out.

        w_t = 1 / (N · len_n)

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` not used.
        count_empty: whether rows without an action count in N.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Source: Shao et al. 2024, GRPO, arXiv:2402.03300, equation 3.
    """
    actions = enter("sequence_mean_token_mean", mask, group_ids)
    lengths = actions.sum(1, keepdims=True)
    return safe_divide(actions, lengths * sequences(actions, count_empty))


@register(
    "aggregation",
    "sequence_mean_token_sum",
    aliases=("seq-mean-token-sum", "seq_mean_token_sum", "luspo"),
    paper="arXiv:2503.20783",
)
def sequence_mean_token_sum(
    mask: jax.Array, group_ids: jax.Array | None, *, count_empty: bool = False
) -> jax.Array:
    """Every sequence counts by its actions, on average over the sequences.

    N counts rows with an action, as in verl and Tunix; TRL counts all rows (`count_empty=True`).

        w_t = 1 / N

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` not used.
        count_empty: whether rows without an action count in N.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Source: the policy gradient of a whole sequence; Liu et al. 2025, arXiv:2503.20783.
    """
    actions = enter("sequence_mean_token_sum", mask, group_ids)
    return safe_divide(actions, sequences(actions, count_empty))


@register("aggregation", "sequence_sum_token_mean", aliases=("seq-sum-token-mean",))
def sequence_sum_token_mean(mask: jax.Array, group_ids: jax.Array | None) -> jax.Array:
    """Every sequence counts 1, shared by its actions; the gradient grows with the mini-batch.

        w_t = 1 / len_n

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` not used.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Source: the sum over sequences of GRPO's inner mean, arXiv:2402.03300.
    """
    actions = enter("sequence_sum_token_mean", mask, group_ids)
    return safe_divide(actions, actions.sum(1, keepdims=True))


@register(
    "aggregation",
    "constant_length",
    aliases=("seq-mean-token-sum-norm", "seq_mean_token_sum_norm", "dr_grpo"),
    paper="arXiv:2503.20783",
)
def constant_length(
    mask: jax.Array,
    group_ids: jax.Array | None,
    *,
    length: int | None = None,
    count_empty: bool = False,
) -> jax.Array:
    """Every action counts the same whatever the batch holds: a constant stands for the length.

    N counts rows with an action, as in verl and Tunix; TRL and SkyRL count all rows
    (`count_empty=True`).

        w_t = 1 / (N · length)

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` not used.
        length: tokens; None stands for the generation limit, which the learner fills in, and for
            the padded width T where nobody does (as in verl and Tunix).
        count_empty: whether rows without an action count in N.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Raises:
        ZootomyError: if `length` is not positive.

    Source: Liu et al. 2025, Dr. GRPO, arXiv:2503.20783, appendix.
    """
    actions = enter("constant_length", mask, group_ids)
    length = mask.shape[1] if length is None else length
    above("constant_length", "length", length)
    return safe_divide(actions, sequences(actions, count_empty) * length)


@register("aggregation", "prompt_mean", aliases=("prompt-mean",), needs=("groups",))
def prompt_mean(mask: jax.Array, group_ids: jax.Array, *, count_empty: bool = False) -> jax.Array:
    """Every prompt counts the same, and every action of its group.

    P counts groups with an action; SkyRL counts all groups (`count_empty=True`).

        w_t = 1 / (P · Σ m over the group)

    Args:
        mask: `[N, T]` 1 on actions.
        group_ids: `[N]` int, equal for the completions of one prompt; any numbers, in any order.
        count_empty: whether groups without an action count in P.

    Returns:
        `[N, T]` float32 weights, 0 where the mask is 0.

    Source: the mean over prompts of DAPO's token mean, arXiv:2503.14476.
    """
    actions = enter("prompt_mean", mask, group_ids)
    ids = dense_ids(group_ids)
    tokens = group_sum(actions.sum(1), ids)
    filled = (tokens > 0).astype(jnp.float32).sum()
    groups = ids.max(initial=-1) + 1.0 if count_empty else filled
    return safe_divide(actions, groups * tokens[ids][:, None])
