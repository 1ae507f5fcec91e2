"""Pure functions on arrays, one family a file; importing the package gives every block its name."""

from . import advantage as advantage
from . import aggregation as aggregation
from . import controller as controller
from . import correction as correction
from . import group_filter as group_filter
from . import kl_estimator as kl_estimator
from . import policy_loss as policy_loss
from . import preference_loss as preference_loss
from . import ratio as ratio
from . import regularizer as regularizer
from . import reward_loss as reward_loss
from . import reward_shaping as reward_shaping
from . import value_loss as value_loss
from . import whitening as whitening
from .types import Controller, RewardInfo, TokenLoss

__all__ = [
    "Controller",
    "RewardInfo",
    "TokenLoss",
    "advantage",
    "aggregation",
    "controller",
    "correction",
    "group_filter",
    "kl_estimator",
    "policy_loss",
    "preference_loss",
    "ratio",
    "regularizer",
    "reward_loss",
    "reward_shaping",
    "value_loss",
    "whitening",
]
