"""Whitening at the peers' hyperparameters gives the peers' numbers, on actions.

At tokens that are no actions Zootomy returns 0; verl, SkyRL and Tunix scale padding along, which
is a by-product that they mask later.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.registry import get


def shifted(case):
    return {"shift_mean": case.params["shift_mean"]}


PEERS = [
    ("masked_whiten__verl", "batch", shifted),
    ("masked_whiten__skyrl", "batch", shifted),
    ("masked_whiten__tunix", "batch", lambda case: {}),
    (
        "masked_whiten__areal",
        "batch",
        lambda case: {
            "ddof": 1 if case.params["std_unbiased"] else 0,
            "eps": case.params["eps"],
            "eps_place": "std",
        },
    ),
    (
        "batch_whiten__openrlhf",
        "batch",
        lambda case: {
            "use_std": not case.params["no_std_norm"],
            "ddof": 0,
            "eps_place": "floor",
        },
    ),
    ("row_normalize__openrlhf", "row", lambda case: {"eps": case.params["eps"]}),
]


@pytest.mark.parametrize("file, name, hyperparameters", PEERS, ids=[peer[0] for peer in PEERS])
def test_peer(parity, file, name, hyperparameters):
    file = f"whitening/{file}"
    for case in parity.cases(file):
        values, mask = jnp.asarray(case.inputs["values"]), jnp.asarray(case.inputs["mask"])
        whitened = get("whitening", name)(values, mask, **hyperparameters(case))
        parity.close(file, whitened, case.outputs["whitened"], where=mask)
        assert not np.asarray(whitened)[case.inputs["mask"] == 0].any()


def test_skyrl_takes_the_mean_over_padding(parity):
    # Deliberately different: SkyRL's batch normalisation subtracts the mean over all positions,
    # padding included, so that its result follows what the padding holds. The formula is checked
    # to be the only difference: with that mean the numbers are SkyRL's.
    file = "whitening/batch_normalize__skyrl"
    differs = 0.0
    for case in parity.cases(file):
        values, mask = case.inputs["values"].astype(np.float64), case.inputs["mask"]
        ours = get("whitening", "batch")(
            jnp.asarray(case.inputs["values"]), jnp.asarray(mask), ddof=0, eps_place="floor"
        )
        left = values - values.mean()
        theirs = left / np.sqrt(max((left**2 * mask).sum() / mask.sum(), 1e-8))
        parity.close(file, theirs, case.outputs["whitened"], where=mask)
        differs = max(differs, np.abs(ours - case.outputs["whitened"])[mask > 0].max())
    assert differs > 0.05


def test_the_three_conventions_on_one_example():
    # [1, 2, 3]: verl, SkyRL, Tunix [−1, 0, 1]; OpenRLHF [−1.2247, 0, 1.2247].
    values, mask = jnp.array([[1.0, 2.0, 3.0]]), jnp.ones((1, 3))
    batch = get("whitening", "batch")
    np.testing.assert_allclose(batch(values, mask), [[-1, 0, 1]], atol=1e-6)
    openrlhf = batch(values, mask, ddof=0, eps_place="floor")
    np.testing.assert_allclose(openrlhf, [[-1.224745, 0, 1.224745]], atol=1e-6)


def test_every_file_is_tried(parity):
    here = {path.stem for path in (parity.data / "whitening").glob("*.json")}
    assert here == {peer[0] for peer in PEERS} | {"batch_normalize__skyrl"}
