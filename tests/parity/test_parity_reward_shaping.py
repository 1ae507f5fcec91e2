"""Reward shapings at the peers' hyperparameters give the peers' numbers."""

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import RewardInfo
from zootomy.registry import get


class Groups:
    """Rows with group ids as `[P, G]` with a validity, and back: groups may be uneven."""

    def __init__(self, ids):
        ids = np.asarray(ids)
        distinct = list(dict.fromkeys(ids.tolist()))
        self.row = np.array([distinct.index(i) for i in ids.tolist()])
        self.column = np.array([(ids[:n] == ids[n]).sum() for n in range(len(ids))])
        self.shape = (len(distinct), int(self.column.max()) + 1)
        self.valid = np.zeros(self.shape, bool)
        self.valid[self.row, self.column] = True

    def of(self, rows, fill=np.nan):
        """`[N]` as `[P, G]`, NaN where the group has no such member."""
        full = np.full(self.shape, fill, np.float32)
        full[self.row, self.column] = rows
        return full

    def rows(self, full):
        """`[P, G]` as `[N]`."""
        return np.asarray(full)[self.row, self.column]


def shape(inputs, chain, **hyperparameters):
    """The chain of shapings on a case's rewards, as rows; one name or (name, hyperparameters)s."""
    groups = Groups(inputs["group_ids"])
    lengths = inputs["mask"].sum(1) if "mask" in inputs else np.zeros(len(groups.row))
    info = RewardInfo(jnp.asarray(groups.valid), lengths=jnp.asarray(groups.of(lengths, 0)))
    rewards = jnp.asarray(groups.of(inputs["rewards"]))
    if isinstance(chain, str):
        chain = [(chain, hyperparameters)]
    for name, values in chain:
        rewards = get("reward_shaping", name)(rewards, info, **values)
    return groups.rows(rewards)


def areal(case, **hyperparameters):
    return {"ddof": 1 if case.params["std_unbiased"] else 0, "eps": case.params["eps"]}


KEEP = {"singleton": "reward"}
PEERS = [
    ("batch_mean__openrlhf", "batch_mean", {}),
    ("batch_norm__areal", "batch_norm", areal),
    ("gpg__verl", "gpg", lambda case: {"norm": case.params["f_norm"], **KEEP}),
    ("group_mean__areal", "group_mean", {}),
    ("group_mean__openrlhf", "group_mean", {}),
    ("group_mean__skyrl", "group_mean", KEEP),
    ("group_mean__trl", "group_mean", {}),
    ("group_mean__tunix", "group_mean", {}),
    ("group_mean__verl", "group_mean", KEEP),
    (
        "group_mean_batch_std__areal",
        "normalize",
        lambda case: {**areal(case), "mean": "group", "std": "batch", "std_of": "deviations"},
    ),
    ("group_mean_batch_std__trl", "normalize", {"mean": "group", "std": "batch", "eps": 1e-4}),
    ("group_norm__areal", "group_norm", areal),
    ("group_norm__openrlhf", "group_norm", {"eps": 1e-9}),
    ("group_norm__skyrl", "group_norm", {"eps": 1e-6, **KEEP}),
    ("group_norm__trl", "group_norm", {"eps": 1e-4}),
    ("group_norm__tunix", "group_norm", {"eps": 1e-6}),
    ("group_norm__verl", "group_norm", {"eps": 1e-6, **KEEP}),
    ("group_norm_vectorized__verl", "group_norm", {"eps": 1e-6, **KEEP}),
    ("identity__openrlhf", "identity", {}),
    ("leave_one_out__areal", "leave_one_out", {}),
    ("leave_one_out__openrlhf", "leave_one_out", {}),
    ("leave_one_out__skyrl", "leave_one_out", {}),
    ("leave_one_out__trl", "leave_one_out", {}),
    ("leave_one_out__tunix", "leave_one_out", {}),
    ("leave_one_out__verl", "leave_one_out", KEEP),
    ("leave_one_out_vectorized__verl", "leave_one_out", {}),
    (
        "leave_one_out_group_std__areal",
        "normalize",
        lambda case: {
            **areal(case),
            "mean": "leave_one_out",
            "std": "group",
            "std_of": "deviations",
        },
    ),
    ("maxrl__skyrl", "maxrl", {"eps": 1e-6, "nonpositive": "divide", **KEEP}),
    ("opo__verl", "opo", KEEP),
    (
        "pass_at_k__verl",
        "pass_at_k",
        lambda case: {"norm": case.params["norm_adv_by_std_in_grpo"], "eps": 1e-6},
    ),
]


@pytest.mark.parametrize("file, name, hyperparameters", PEERS, ids=[peer[0] for peer in PEERS])
def test_peer(parity, file, name, hyperparameters):
    file = f"reward_shaping/{file}"
    for case in parity.cases(file):
        values = hyperparameters(case) if callable(hyperparameters) else hyperparameters
        shaped = shape(case.inputs, name, **values)
        parity.close(file, shaped, case.outputs["shaped"])
        if "advantages" in case.outputs:
            # The value of the completion on each of its actions.
            spread_out = shaped[:, None] * case.inputs["mask"]
            parity.close(file, spread_out, case.outputs["advantages"])


def test_leave_one_out_normalized_trl_is_a_chain(parity):
    file = "reward_shaping/leave_one_out_normalized__trl"
    for case in parity.cases(file):
        chain = [("leave_one_out", {}), ("batch_norm", {"ddof": 1, "eps": 1e-4})]
        parity.close(file, shape(case.inputs, chain), case.outputs["shaped"])


@pytest.mark.parametrize("peer", ["skyrl", "verl"])
def test_singleton_group(parity, peer):
    file = f"reward_shaping/singleton_group__{peer}"
    for case in parity.cases(file):
        if peer == "skyrl":
            by_std = case.params["estimator"] == "grpo"
            plain = ("leave_one_out", {})
        else:
            by_std = case.params["norm_adv_by_std_in_grpo"]
            plain = ("group_mean", KEEP)
        chain = [("group_norm", {"eps": 1e-6, **KEEP})] if by_std else [plain]
        shaped = shape(case.inputs, chain)
        parity.close(file, shaped, case.outputs["shaped"])
        parity.close(file, shaped[:, None] * case.inputs["mask"], case.outputs["advantages"])


@pytest.mark.parametrize("peer", ["areal", "openrlhf", "trl", "tunix", "verl"])
def test_overlong_penalty(parity, peer):
    file = f"reward_shaping/overlong_penalty__{peer}"
    for case in parity.cases(file):
        # Tunix's lengths are characters; the formula is the same.
        lengths = case.inputs["lengths"]
        rewards = case.inputs.get("rewards", np.zeros(lengths.shape, np.float32))
        info = RewardInfo(jnp.ones((1, len(lengths)), bool), lengths=jnp.asarray(lengths)[None])
        shaped = get("reward_shaping", "overlong_penalty")(
            jnp.asarray(rewards)[None],
            info,
            length=case.params["max_len"],
            buffer=case.params["buffer"],
            factor=case.params.get("factor", 1.0),
            cap=peer in ("openrlhf", "trl"),
        )[0]
        if "rewards" in case.outputs:
            parity.close(file, shaped, case.outputs["rewards"])
        parity.close(file, shaped - rewards, case.outputs["penalty"])


def test_stop_properly(parity):
    file = "reward_shaping/stop_properly__openrlhf"
    for case in parity.cases(file):
        truncated = jnp.asarray(case.inputs["truncated"] > 0)[None]
        info = RewardInfo(jnp.ones(truncated.shape, bool), truncated=truncated)
        shaped = get("reward_shaping", "stop_properly")(
            jnp.asarray(case.inputs["rewards"])[None], info, coef=case.params["coef"]
        )
        parity.close(file, shaped[0], case.outputs["rewards"])


def test_reward_clip(parity):
    file = "reward_shaping/reward_clip__openrlhf"
    for case in parity.cases(file):
        rewards = jnp.asarray(case.inputs["rewards"])[None]
        info = RewardInfo(jnp.ones(rewards.shape, bool))
        clip_range = case.params.get("clip_range")
        # Without a range the peer does not clip: no block.
        if clip_range is not None:
            low, high = map(float, clip_range)
            rewards = get("reward_shaping", "clip")(rewards, info, low=low, high=high)
        expected = case.outputs["token_rewards"]
        parity.close(file, parity.at_last_action(rewards[0], case.inputs["mask"]), expected)


def test_reward_clip_kl_leave_one_out(parity):
    # TRL's RLOO: clip, then the KL of the whole sequence, then the baseline.
    file = "reward_shaping/reward_clip_kl_leave_one_out__trl"
    for case in parity.cases(file):
        given = case.inputs
        groups = Groups(given["group_ids"])
        info = RewardInfo(jnp.asarray(groups.valid))
        rewards = jnp.asarray(groups.of(given["rewards"]))
        clip_range = case.params.get("clip_range")
        if clip_range is not None:
            low, high = map(float, clip_range)
            rewards = get("reward_shaping", "clip")(rewards, info, low=low, high=high)
        kl = (np.where(given["mask"], given["old_logp"] - given["ref_logp"], 0)).sum(1)
        rewards = rewards - case.params["beta"] * groups.of(kl, 0)
        shaped = get("reward_shaping", "leave_one_out")(rewards, info)
        parity.close(file, groups.rows(shaped), case.outputs["shaped"])


def test_shaping_pipeline(parity):
    # Overlong, stop-properly, baseline, clip; then on tokens: reward less KL, return, whitening.
    file = "reward_shaping/shaping_pipeline__openrlhf"
    baselines = {
        "group_norm": ("group_norm", {"eps": 1e-9}),
        "reinforce_baseline": ("group_mean", {}),
        "rloo": ("leave_one_out", {}),
    }
    for case in parity.cases(file):
        given, params = case.inputs, case.params
        groups = Groups(given["group_ids"])
        info = RewardInfo(
            jnp.asarray(groups.valid),
            lengths=jnp.asarray(groups.of(given["lengths"], 0)),
            truncated=jnp.asarray(groups.of(given["truncated"], 0) > 0),
        )
        overlong = {
            "length": params["max_new_tokens"],
            "buffer": params["overlong_buffer_len"],
            "factor": params["overlong_penalty_factor"],
        }
        chain = [("overlong_penalty", overlong)]
        if params.get("stop_coef") is not None:
            chain.append(("stop_properly", {"coef": params["stop_coef"]}))
        chain.append(baselines[params["estimator"]])
        if params.get("clip_range") is not None:
            low, high = map(float, params["clip_range"])
            chain.append(("clip", {"low": low, "high": high}))
        rewards = jnp.asarray(groups.of(given["rewards"]))
        for name, values in chain:
            rewards = get("reward_shaping", name)(rewards, info, **values)
        mask = jnp.asarray(given["mask"])
        token_rewards = parity.at_last_action(groups.rows(rewards), given["mask"])
        token_rewards = jnp.asarray(token_rewards - params["kl_coef"] * given["kl"])
        advantages, returns = get("advantage", "cumulative_return")(
            token_rewards, None, mask, holes="step"
        )
        if params["estimator"] == "reinforce_baseline":
            advantages = get("whitening", "batch")(advantages, mask, ddof=0, eps_place="floor")
        parity.close(file, returns, case.outputs["returns"], where=mask)
        parity.close(file, advantages, case.outputs["advantages"], where=mask)


def test_remax(parity):
    file = "reward_shaping/remax__verl"
    for case in parity.cases(file):
        given = case.inputs
        # A completion a prompt, each with its own greedy baseline.
        info = RewardInfo(
            jnp.ones((len(given["rewards"]), 1), bool),
            baseline=jnp.asarray(given["reward_baselines"]),
        )
        dense, mask = given["token_rewards"], jnp.asarray(given["mask"])
        shaped = get("reward_shaping", "remax")(
            jnp.asarray(np.where(given["mask"], dense, 0).sum(1))[:, None], info
        )
        # The shaped reward is the return of the first action; what was paid by then is no
        # longer to come. So the baseline is paid back on the last action.
        paid_back = parity.at_last_action(-given["reward_baselines"], given["mask"])
        advantages, _ = get("advantage", "cumulative_return")(
            jnp.asarray(dense + paid_back), None, mask
        )
        parity.close(file, advantages, case.outputs["advantages"], where=mask)
        returns, _ = get("advantage", "cumulative_return")(jnp.asarray(dense), None, mask)
        parity.close(file, returns, case.outputs["returns"], where=mask)
        first = np.asarray(mask).argmax(1)
        whole = case.outputs["advantages"][np.arange(len(first)), first]
        parity.close(file, shaped[:, 0], whole)


def functions(inputs):
    """A case's rewards by function as `[P, G]`s with their sum left out."""
    groups = Groups(inputs["group_ids"])
    by_function = inputs["rewards_per_func"].T
    components = jnp.asarray(np.stack([groups.of(column) for column in by_function]))
    valid = groups.valid & ~np.isnan(np.asarray(components)).all(0)
    info = RewardInfo(
        jnp.asarray(valid), components=components, weights=jnp.asarray(inputs["weights"])
    )
    return groups, info


def test_gdpo_trl(parity):
    file = "reward_shaping/gdpo__trl"
    for case in parity.cases(file):
        groups, info = functions(case.inputs)
        shaped = get("reward_shaping", "gdpo")(jnp.zeros(groups.shape), info)
        parity.close(file, groups.rows(shaped), case.outputs["shaped"])


def test_gdpo_verl(parity):
    # The second stage over tokens is the whitening of the advantages.
    file = "reward_shaping/gdpo__verl"
    for case in parity.cases(file):
        groups, info = functions(case.inputs)
        shaped = get("reward_shaping", "gdpo")(
            jnp.zeros(groups.shape), info, eps=1e-6, whiten=False
        )
        mask = jnp.asarray(case.inputs["mask"])
        advantages = get("whitening", "batch")(groups.rows(shaped)[:, None] * mask, mask)
        parity.close(file, advantages, case.outputs["advantages"])


def test_weighted_sum_group_norm(parity):
    # A function that does not apply adds nothing; a row without any reward is invalid.
    file = "reward_shaping/weighted_sum_group_norm__trl"
    for case in parity.cases(file):
        groups, info = functions(case.inputs)
        total = np.nansum(np.asarray(info.components) * np.asarray(info.weights)[:, None, None], 0)
        shaped = get("reward_shaping", "group_norm")(jnp.asarray(total), info, eps=1e-4)
        parity.close(file, groups.rows(shaped), case.outputs["shaped"])


def test_every_file_is_tried(parity):
    here = {path.stem for path in (parity.data / "reward_shaping").glob("*.json")} - {
        peer[0] for peer in PEERS
    }
    assert here == {
        "gdpo__trl",
        "gdpo__verl",
        "leave_one_out_normalized__trl",
        *(f"overlong_penalty__{peer}" for peer in ("areal", "openrlhf", "trl", "tunix", "verl")),
        "remax__verl",
        "reward_clip__openrlhf",
        "reward_clip_kl_leave_one_out__trl",
        "shaping_pipeline__openrlhf",
        "singleton_group__skyrl",
        "singleton_group__verl",
        "stop_properly__openrlhf",
        "weighted_sum_group_norm__trl",
    }
