"""Rollouts and model outputs that any algorithm can be tried on: waves, the same everywhere."""

import numpy as np
from zootomy import Algorithm
from zootomy.learners import Outputs, Rollouts
from zootomy.learners.vocabulary import in_the_update

P, G, T, V = 3, 4, 6, 5
N = P * G
LENGTHS = np.array([6, 3, 1, 5, 2, 6, 4, 6, 3, 5, 6, 4])
# By group: mixed, all right, mixed with a failed rollout (the last).
RIGHT = np.array([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 0]])
# A bad action that has become 33 times as likely: what bounds the loss of such ones is at work.
FAR = (2, 0)


def wave(*shape, low, high, pace):
    """Numbers between two bounds, none of them equal; no generator, whose streams may change."""
    x = np.sin(pace * np.arange(1, 1 + np.prod(shape)) + pace**2).reshape(shape)
    return (low + (high - low) * (x + 1) / 2).astype(np.float32)


def make_rollouts() -> Rollouts:
    """Everything that a learner could know of 3 prompts x 4 completions of up to 6 tokens."""
    mask = np.arange(T) < LENGTHS[:, None]
    valid = np.ones((P, G), bool)
    valid[-1, -1] = False
    form = wave(P, G, low=0, high=1, pace=1.7)
    old = wave(N, T, low=-2.5, high=-0.2, pace=0.9)
    old[FAR] = -4.0
    return Rollouts(
        rewards=(0.9 * RIGHT + 0.1 * form).astype(np.float32),
        valid=valid,
        mask=mask.astype(np.float32),
        truncated=LENGTHS.reshape(P, G) == T,
        components=np.stack([RIGHT, form]).astype(np.float32),
        component_weights=np.array([0.9, 0.1], np.float32),
        baseline=np.array([0.4, 0.9, 0.2], np.float32),
        scale=np.array([0.5, 0.7, 0.9], np.float32),
        old_logp=old,
        rollout_logp=old + wave(N, T, low=-0.03, high=0.04, pace=2.3),
        ref_logp=old + wave(N, T, low=-0.5, high=0.5, pace=1.1),
        values=wave(N, T, low=0, high=1, pace=0.7),
        next_values=wave(N, low=0, high=1, pace=1.3),
        sum_pi_squared=wave(N, T, low=0.2, high=0.9, pace=0.5),
        entropy=wave(N, T, low=0.1, high=2, pace=0.3),
        turn_ids=np.zeros((N, T), np.int32),
        kl=wave(N, T, low=0, high=0.4, pace=0.6),
    )


def make_outputs(algorithm: Algorithm) -> Outputs:
    """What the models say after an update that has moved them."""
    old = make_rollouts().old_logp
    logp = np.minimum(old + wave(N, T, low=-0.4, high=0.4, pace=1.9), -0.01)
    logp[FAR] = -0.5
    whole = bool(in_the_update(algorithm))
    return Outputs(
        logp=logp,
        entropy=wave(N, T, low=0.1, high=2, pace=0.35),
        values=wave(N, T, low=0, high=1, pace=0.8) if algorithm.value_loss is not None else None,
        distributions=whole_logp(0.75) if whole else None,
        ref_distributions=whole_logp(0.55) if whole else None,
    )


def whole_logp(pace):
    """`[N, T, V]` log-probabilities of a whole vocabulary."""
    logits = wave(N, T, V, low=-1, high=1, pace=pace)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def coefficients(algorithm: Algorithm, value: float = 0.3) -> dict[str, float]:
    """The coefficients that a learner would pass, all of one value."""
    return dict.fromkeys(algorithm.controllers, value)


def couples(algorithm: Algorithm) -> bool:
    """Whether a block of the update looks at the whole mini-batch."""
    from zootomy.clusters import Role
    from zootomy.learners.whole import at_once

    return bool(at_once(algorithm, Role.ACTOR) or at_once(algorithm, Role.CRITIC))
