"""Engines by name."""

from __future__ import annotations

from ..models import Decoder
from .config import RolloutConfig, check_engine
from .types import RolloutEngine
from .vanilla import VanillaEngine


def make_engine(config: RolloutConfig, model: Decoder, *, version: int = 0) -> RolloutEngine:
    """The engine that `config.engine` names, over a model.

    Args:
        config: limits and settings.
        model: structure and first weights; shared, not copied.
        version: of those weights.

    Raises:
        ZootomyError: an engine this version does not hold, or limits the model cannot keep.
    """
    check_engine(config.engine)
    return VanillaEngine(config, model, version=version)
