"""Which of two completions is preferred: one loss a pair.

Log-probabilities are sums over a completion's tokens; `lengths` are its tokens.
"""

from .completions import completion_logp, wpo_weights
from .dpo import discopop, dpo, dpo_positive, dpo_sft, f_dpo, r_dpo
from .kto_terms import kto_terms
from .margins import aot, exo, hinge, ipo, robust
from .reference_free import cpo, orpo, sft, simpo
from .separate import apo_down, apo_zero, bco, kto, nca, sppo

__all__ = [
    "aot",
    "apo_down",
    "apo_zero",
    "bco",
    "completion_logp",
    "cpo",
    "discopop",
    "dpo",
    "dpo_positive",
    "dpo_sft",
    "exo",
    "f_dpo",
    "hinge",
    "ipo",
    "kto",
    "kto_terms",
    "nca",
    "orpo",
    "r_dpo",
    "robust",
    "sft",
    "simpo",
    "sppo",
    "wpo_weights",
]
