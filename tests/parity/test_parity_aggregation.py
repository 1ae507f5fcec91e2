"""Aggregation at the peers' settings: loss and gradient, from weights of the whole mini-batch.

Where a peer is told the sizes of a global batch of which it sees a part (`batch_num_tokens`,
`global_batch_size`, `dp_size`, accumulation steps), Zootomy has no such setting, for its weights
are those of the whole. The peer's number is then our number times the ratio of the sizes, which
the tests below write out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.registry import get


def weights(case, name, ids=None, **hyperparameters):
    mask = jnp.asarray(case.inputs["mask"])
    ids = jnp.arange(mask.shape[0]) if ids is None else jnp.asarray(ids)
    return get("aggregation", name)(mask, ids, **hyperparameters)


def check(parity, file, case, weights, factor=1.0):
    """The loss Σ w·l and its gradients are the peer's, up to a factor."""
    given = {name: jnp.asarray(value) for name, value in case.inputs.items()}
    if "loss_mat" in given:
        # The gradient with respect to logp is that of l = −A·logp, the same numbers.
        loss, gradient = jax.value_and_grad(lambda x: factor * (weights * x).sum())(
            given["loss_mat"]
        )
        parity.close(file, gradient, case.grads["loss_mat"])
        chained = jax.grad(lambda x: factor * (weights * -given["advantages"] * x).sum())(
            given["logp"]
        )
        parity.close(file, chained, case.grads["logp"])
    elif "scaled_advantages" in case.outputs:
        loss, gradient = jax.value_and_grad(
            lambda x: factor * (weights * -given["advantages"] * x).sum()
        )(given["logp"])
        parity.close(file, gradient, case.grads["logp"])
        scaled = factor * weights * given["advantages"]
        # The peer scales padding along; it never counts.
        expected = case.outputs["scaled_advantages"]
        parity.close(file, scaled, expected, where=case.inputs["mask"])
    else:
        # TRL at ratio 1: the loss of a token is −A, its gradient −A.
        ratio = jax.value_and_grad(
            lambda x: (
                factor
                * (weights * -given["advantages"] * jnp.exp(x - jax.lax.stop_gradient(x))).sum()
            )
        )
        loss, gradient = ratio(given["logp"])
        parity.close(file, gradient, case.grads["logp"])
    parity.close(file, loss, case.outputs["loss"])


def rows(case):
    """How many rows have an action, and all of them."""
    mask = case.inputs["mask"]
    return int((mask.sum(1) > 0).sum()), mask.shape[0]


@pytest.mark.parametrize("peer", ["verl", "openrlhf"])
def test_token_mean_with_batch_info(parity, peer):
    file = f"aggregation/token_mean__{peer}"
    for case in parity.cases(file):
        actions = case.inputs["mask"].sum()
        factor = case.params.get("dp_size", 1) * actions
        factor /= case.params.get("batch_num_tokens") or actions
        check(parity, file, case, weights(case, "token_mean"), factor)


def test_token_mean_skyrl_tunix(parity):
    for peer in ("skyrl", "tunix"):
        file = f"aggregation/token_mean__{peer}"
        for case in parity.cases(file):
            check(parity, file, case, weights(case, "token_mean"))


def test_token_mean_trl(parity):
    file = "aggregation/token_mean_global__trl"
    for case in parity.cases(file):
        params, actions = case.params, case.inputs["mask"].sum()
        tokens = max(params["num_items_in_batch"], 1) / params["num_processes"]
        if params["training"]:
            tokens *= params["gradient_accumulation_steps"] / params["steps_per_generation"]
        check(parity, file, case, weights(case, "token_mean"), actions / tokens)
    file = "aggregation/token_mean_local__trl"
    for case in parity.cases(file):
        factor = 1 / case.params["gradient_accumulation_steps"]
        check(parity, file, case, weights(case, "token_mean"), factor)


@pytest.mark.parametrize(
    "name, file",
    [
        ("sequence_mean_token_mean", "seq_mean_token_mean"),
        ("sequence_mean_token_sum", "seq_mean_token_sum"),
    ],
)
def test_sequence_means(parity, name, file):
    for peer in ("verl", "openrlhf", "tunix", "skyrl", "trl"):
        path = f"aggregation/{file}__{peer}"
        if not (parity.data / f"{path}.json").exists():
            continue
        counts_all = peer in ("skyrl", "trl")
        for case in parity.cases(path):
            factor = case.params.get("dp_size", 1)
            factor *= rows(case)[0] / (case.params.get("global_batch_size") or rows(case)[0])
            factor /= case.params.get("gradient_accumulation_steps", 1)
            check(parity, path, case, weights(case, name, count_empty=counts_all), factor)


def test_an_empty_row_in_two_conventions():
    # Losses 1, lengths 2, 1, 0: verl, OpenRLHF, Tunix and here 1; TRL and SkyRL 2/3.
    mask, ids = jnp.array([[1, 1], [1, 0], [0, 0]]), jnp.arange(3)
    block = get("aggregation", "sequence_mean_token_mean")
    np.testing.assert_allclose(block(mask, ids).sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(block(mask, ids, count_empty=True).sum(), 2 / 3, rtol=1e-6)


@pytest.mark.parametrize("peer", ["skyrl", "trl"])
def test_constant_length(parity, peer):
    file = f"aggregation/constant_length__{peer}"
    for case in parity.cases(file):
        length = case.params["max_seq_len" if peer == "skyrl" else "max_completion_length"]
        factor = 1 / case.params.get("gradient_accumulation_steps", 1)
        got = weights(case, "constant_length", length=length, count_empty=True)
        check(parity, file, case, got, factor)


def test_constant_length_verl(parity):
    file = "aggregation/seq_mean_token_sum_norm__verl"
    for case in parity.cases(file):
        factor = case.params.get("dp_size", 1)
        factor *= rows(case)[0] / (case.params.get("global_batch_size") or rows(case)[0])
        length = case.params.get("loss_scale_factor")
        check(parity, file, case, weights(case, "constant_length", length=length), factor)


def test_constant_length_tunix(parity):
    file = "aggregation/seq_mean_token_scale__tunix"
    for case in parity.cases(file):
        norm = case.params.get("norm")
        length = None if norm is None else int(norm)
        check(parity, file, case, weights(case, "constant_length", length=length))


def test_prompt_mean_skyrl(parity):
    file = "aggregation/prompt_mean__skyrl"
    for case in parity.cases(file):
        bounds = np.asarray(case.params["prompt_boundaries"])
        ids = np.repeat(np.arange(len(bounds)), bounds[:, 1] - bounds[:, 0])
        check(parity, file, case, weights(case, "prompt_mean", ids, count_empty=True))


@pytest.mark.parametrize("file", ["token_sum__verl", "token_sum_norm__tunix"])
def test_token_sums(parity, file):
    # A sum over tokens, whatever the batch holds, is `token_sum` over a divisor.
    path = f"aggregation/{file}"
    for case in parity.cases(path):
        divisor = 1.0 / case.params.get("dp_size", 1)
        if file == "token_sum_norm__tunix":
            # By default the peer divides by the rows with an action.
            divisor = float(case.params.get("norm") or rows(case)[0])
        check(parity, path, case, weights(case, "token_sum", divisor=divisor))


def test_token_mean_per_micro_batch_skyrl(parity):
    # Deliberately not offered: the legacy mode weighs a token by the micro-batch it falls into.
    # Its numbers are those of token_mean on each micro-batch, averaged; rows beyond the last
    # full micro-batch are lost.
    file = "aggregation/token_mean_per_micro_batch__skyrl"
    differs = 0.0
    for case in parity.cases(file):
        mask, size = case.inputs["mask"], case.params["micro_batch_size"]
        parts = len(mask) // size
        by_part = np.zeros(mask.shape, np.float32)
        for part in range(parts):
            chosen = slice(part * size, (part + 1) * size)
            own = get("aggregation", "token_mean")(jnp.asarray(mask[chosen]), jnp.arange(size))
            by_part[chosen] = np.asarray(own) / parts
        check(parity, file, case, jnp.asarray(by_part))
        differs = max(differs, np.abs(by_part - weights(case, "token_mean")).max())
    assert differs > 0.01


def test_every_file_is_tried(parity):
    assert len(list((parity.data / "aggregation").glob("*.json"))) == 22
