"""Value losses against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.blocks import value_loss
from zootomy.registry import ZootomyError

VALUES = jnp.array([[1.0, 2.0, jnp.nan], [0.5, jnp.inf, 0.0]])
OLD = jnp.array([[0.0, 2.0, 0.0], [0.0, 0.0, jnp.nan]])
RETURNS = jnp.array([[3.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
MASK = jnp.array([[1, 1, 0], [1, 0, 0]])


def both(block, **hyper):
    return jax.value_and_grad(lambda v: block(v, OLD, RETURNS, MASK, **hyper).sum(), has_aux=False)(
        VALUES
    )


def test_mse_hand_computed():
    loss = value_loss.mse(VALUES, OLD, RETURNS, MASK)
    # half of (1-3)^2, (2+1)^2, (.5-1)^2
    np.testing.assert_allclose(loss, [[2, 4.5, 0], [0.125, 0, 0]])
    np.testing.assert_allclose(both(value_loss.mse)[1], [[-2, 3, 0], [-0.5, 0, 0]])


def test_clipped_mse_is_pessimistic():
    # V moved from 0 to 1 towards 3: clipped to .2, (.2-3)^2/2 = 3.92 > 2: no gradient
    # V did not move from 2: 4.5; V moved from 0 to .5 towards 1: (.2-1)^2/2 = .32 > .125
    loss = value_loss.clipped_mse(VALUES, OLD, RETURNS, MASK)
    np.testing.assert_allclose(loss, [[3.92, 4.5, 0], [0.32, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(both(value_loss.clipped_mse)[1], [[0, 3, 0], [0, 0, 0]])
    wide = value_loss.clipped_mse(VALUES, OLD, RETURNS, MASK, clip=10.0)
    np.testing.assert_allclose(wide, value_loss.mse(VALUES, OLD, RETURNS, MASK))


def test_wrong_input_is_refused():
    with pytest.raises(ZootomyError, match=r"clip must be above 0, got 0\.0"):
        value_loss.clipped_mse(VALUES, OLD, RETURNS, MASK, clip=0.0)
    with pytest.raises(ZootomyError, match="returns has shape"):
        value_loss.mse(VALUES, OLD, RETURNS[:1], MASK)


def test_huber_is_linear_far_away():
    # errors -2, 3, -.5 with delta 1: 1 * (2 - .5), 1 * (3 - .5), .125
    loss, slope = both(value_loss.huber, delta=1.0)
    assert float(loss) == pytest.approx(1.5 + 2.5 + 0.125)
    np.testing.assert_allclose(slope, [[-1, 1, 0], [-0.5, 0, 0]])
    # clipped to .2 of the old: errors -2.8 and -.8 are worse
    loss, _ = both(value_loss.huber, delta=1.0, clip=0.2)
    assert float(loss) == pytest.approx(2.3 + 2.5 + 0.32)
