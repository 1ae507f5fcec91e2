"""The arrays on which the lines of the reference pages run, by slot."""

from __future__ import annotations

TOKENS = """\
mask = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])  # two sequences: of two actions and of three
logp = jnp.log(jnp.array([[0.5, 0.3, 1.0], [0.8, 0.2, 0.6]]))
old_logp = jnp.log(jnp.array([[0.4, 0.3, 1.0], [0.7, 0.3, 0.5]]))
rollout_logp = old_logp + 0.01
ref_logp = jnp.log(jnp.array([[0.4, 0.4, 1.0], [0.7, 0.4, 0.5]]))
advantages = jnp.array([[0.5, 0.5, 0.0], [-0.5, -0.5, -0.5]])
"""
SETUP = {
    "reward_shaping": """\
from zootomy.blocks import RewardInfo

rewards = jnp.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0]])  # two prompts, three completions each
info = RewardInfo(
    valid=jnp.ones((2, 3), bool),
    lengths=jnp.array([[3, 5, 6], [2, 6, 4]]),
    truncated=jnp.array([[False, False, True], [False, True, False]]),
    components=jnp.stack([rewards, 1.0 - rewards]),
    baseline=jnp.array([0.5, 0.25]),
    scale=jnp.array([0.5, 0.5]),
)
""",
    "group_filter": """\
rewards = jnp.array([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])  # the second prompt teaches nothing
valid = jnp.ones((2, 3), bool)
""",
    "kl_placement": "",
    "advantage": TOKENS
    + """\
token_rewards = jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
values = jnp.array([[0.6, 0.7, 0.0], [0.4, 0.3, 0.2]])
group_ids, turn_ids = jnp.array([0, 0]), jnp.zeros((2, 3), int)
sum_pi_squared = jnp.full((2, 3), 0.5)
truncated, next_values = jnp.array([False, True]), jnp.array([0.0, 0.1])
""",
    "whitening": TOKENS + "group_ids = jnp.array([0, 0])\n",
    "ratio": TOKENS,
    "policy_loss": TOKENS + "log_ratio = logp - old_logp\ngroup_ids = jnp.array([0, 0])\n",
    "correction": TOKENS + "entropy = -logp\n",
    "aggregation": """\
mask = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
group_ids = jnp.array([0, 0])
""",
    "kl_estimator": TOKENS
    + """\
# Over a vocabulary of two:
both, ref_both = jnp.log(jnp.array([[[0.5, 0.5]]])), jnp.log(jnp.array([[[0.4, 0.6]]]))
""",
    "regularizer": TOKENS + "entropy = -logp\n",
    "value_loss": """\
mask = jnp.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
values = jnp.array([[0.6, 0.7, 0.0], [0.4, 0.3, 0.2]])
old_values, returns = values - 0.3, jnp.zeros((2, 3))
""",
    "controller": 'metrics = {"kl": 0.2, "entropy": 0.1, "sequences": 64.0}\n',
    "preference_loss": """\
chosen_logp, rejected_logp = jnp.array([-4.0, -6.0]), jnp.array([-5.0, -5.5])  # two pairs
ref_chosen_logp, ref_rejected_logp = jnp.array([-4.5, -6.0]), jnp.array([-4.5, -6.0])
lengths = jnp.array([[4, 5], [6, 5]])  # [B, 2]: of the chosen and of the rejected one
""",
    "reward_loss": """\
chosen, rejected, margin = jnp.array([1.0, 0.2]), jnp.array([0.5, 0.4]), jnp.zeros(2)
moments = jnp.array([[1.0, -1.0], [0.2, -1.0]])  # a mean and a log of the deviation
""",
}
# Calls that differ from the slot's own: other arrays, or a value that only the user knows.
CALLS = {
    ("reward_shaping", "overlong_penalty"): "rewards, info, length=6",
    ("kl_estimator", "full"): "both, ref_both",
    ("kl_estimator", "top_k"): "both, ref_both",
    ("reward_loss", "purm"): "moments, moments - 0.1, margin",
}
# An algorithm around a block that is no choice for a slot of its own.
HOSTED = {
    ("controller", "entropy_target"): """\
bonus = zootomy.block("entropy", coef=zootomy.block("entropy_target"))
zootomy.algorithm("dr_grpo", regularizer=bonus)""",
}
