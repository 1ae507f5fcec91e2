"""Models that end in a number: a critic's value of each token, a reward model's score."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from .config import ModelConfig
from .decoder import Decoder
from .kernels import AttentionKernel
from .stack import LayerStyle

Scalar = TypeVar("Scalar", bound="ScalarModel")


class ScalarModel(nnx.Module):
    """A decoder whose head gives one number a token.

    Args:
        config: of the backbone.
        rngs: source of fresh weights.
        dtype: dtype of the backbone's arithmetic; the head's is float32.
        param_dtype: dtype of the stored weights of the backbone; the head's is float32.
        remat: as of `Decoder`.
        layers: as of `Decoder`.
        attention: as of `Decoder`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        rngs: nnx.Rngs,
        dtype=jnp.float32,
        param_dtype=jnp.float32,
        remat: bool = False,
        layers: LayerStyle = "auto",
        attention: AttentionKernel = "auto",
    ):
        self.config = config
        self.backbone = Decoder(
            config,
            rngs=rngs,
            dtype=dtype,
            param_dtype=param_dtype,
            with_head=False,
            remat=remat,
            layers=layers,
            attention=attention,
        )
        self.score = _score_head(config, rngs)

    @classmethod
    def from_decoder(cls: type[Scalar], decoder: Decoder, *, rngs: nnx.Rngs) -> Scalar:
        """A fresh head on a copy of a language model's body; the decoder is left as it is."""
        model = nnx.eval_shape(
            lambda: cls(
                decoder.config,
                rngs=nnx.Rngs(0),
                dtype=decoder.dtype,
                param_dtype=decoder.param_dtype,
                remat=decoder.remat,
                layers=decoder.layer_style,
                attention=decoder.attention,
            )
        )
        body = dict(nnx.to_flat_state(nnx.state(decoder, nnx.Param)))
        state = dict(nnx.to_flat_state(nnx.state(model, nnx.Param)))
        for path, parameter in state.items():
            if path[0] == "backbone":
                parameter.set_value(jnp.array(body[path[1:]][...]))
        state["score", "kernel"].set_value(jnp.zeros((decoder.config.hidden_size, 1), jnp.float32))
        nnx.update(model, nnx.from_flat_state(state))
        return model

    def token_scores(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array | None = None,
        reads: jax.Array | None = None,
    ) -> jax.Array:
        """The number at every token.

        Args:
            tokens: `[R, L]` int32.
            positions: `[R, L]` int32.
            segments: `[R, L]` int32 or None, as of `Decoder`.
            reads: `[R, K, C]` int32 or None, as of `Decoder`.

        Returns:
            `[R, L]` float32.
        """
        hidden = self.backbone(tokens, positions, segments, reads)
        return self.score(hidden.astype(jnp.float32))[..., 0]


class PolicyWithValue(nnx.Module):
    """A language model and a critic on one backbone: one forward pass gives both.

        logits = head(h)      value = w · h      h: hidden states after the final norm

    Args:
        policy: the language model, with or without adapters; its arrays are shared. The value
            head is fresh.
    """

    def __init__(self, policy: Decoder):
        self.config = policy.config
        self.policy = policy
        self.score = _score_head(policy.config, nnx.Rngs(0))

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array | None = None,
        reads: jax.Array | None = None,
    ) -> jax.Array:
        """Hidden states `[R, L, D]`; arguments as of `Decoder`."""
        return self.policy(tokens, positions, segments, reads)

    def head_kernel(self) -> jax.Array:
        """`[D, V]`: the head of the language model."""
        return self.policy.head_kernel()

    def values(self, hidden: jax.Array) -> jax.Array:
        """`[..., D]` to `[...]` float32."""
        return self.score(hidden.astype(jnp.float32))[..., 0]

    def token_scores(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array | None = None,
        reads: jax.Array | None = None,
    ) -> jax.Array:
        """Values `[R, L]` float32, with a gradient for the value head alone."""
        return self.values(jax.lax.stop_gradient(self(tokens, positions, segments, reads)))


def _score_head(config: ModelConfig, rngs: nnx.Rngs) -> nnx.Linear:
    # Zero, so that a fresh head says 0 everywhere instead of noise.
    return nnx.Linear(
        config.hidden_size,
        1,
        use_bias=False,
        kernel_init=nnx.initializers.zeros_init(),
        dtype=jnp.float32,
        param_dtype=jnp.float32,
        rngs=rngs,
    )


class ValueModel(ScalarModel):
    """A critic: entry t is the value of the state after the tokens up to t."""

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array | None = None,
        reads: jax.Array | None = None,
    ) -> jax.Array:
        """Values `[R, L]` float32; arguments as of `token_scores`."""
        return self.token_scores(tokens, positions, segments, reads)


class RewardModel(ScalarModel):
    """A scorer of whole sequences: the number at each row's last token."""

    def __call__(self, tokens: jax.Array, positions: jax.Array, last: jax.Array) -> jax.Array:
        """Scores of right-padded sequences, one a row.

        Args:
            tokens: `[N, L]` int32.
            positions: `[N, L]` int32.
            last: `[N]` int32, index of each row's last token; what follows it has no influence.

        Returns:
            `[N]` float32.
        """
        scores = self.token_scores(tokens, positions)
        return jnp.take_along_axis(scores, last[:, None], axis=1)[:, 0]
