"""What passes over rows send between devices: sums and what a token sees, and nothing twice."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from zootomy.models import Decoder, QuickJit

LAYERS, WIDTH, KV_HEADS, HEAD_DIM = 2, 8, 2, 4
ROWS, LENGTH, ACTIONS = 4, 22, 4 * 4 * 5  # four sequences a row, of five actions at most
STREAM = ROWS * LENGTH * WIDTH
KEYS_AND_VALUES = LAYERS * 2 * ROWS * LENGTH * KV_HEADS * HEAD_DIM
PICKED = ACTIONS * WIDTH
PARAMETERS = 1768
EMBEDDING = 12 * WIDTH


def sent_by(kit, sent, monkeypatch, mesh, vocabulary="none"):
    """What the forward and the training program send; the vocabulary is whole unless spread."""
    found, call = {}, QuickJit.__call__

    def look(program, *given, **named):
        if program.__name__ in ("forward", "accumulate"):
            compiled = program.jitted.lower(*given, **named).compile()
            found[program.__name__] = sent(compiled)
        return call(program, *given, **named)

    config = dataclasses.replace(
        kit.config, vocab_size=12, num_layers=LAYERS, num_heads=4, num_kv_heads=KV_HEADS
    )
    actor = Decoder(config, rngs=nnx.Rngs(0))
    cluster = kit.cluster(ROWS, LENGTH, 4, mesh=mesh, actor=actor, axis_rules={"vocab": vocabulary})
    assert sum(x.size for x in jax.tree.leaves(nnx.state(actor, nnx.Param))) == PARAMETERS
    rng = np.random.default_rng(0)
    sequences = kit.sequences(rng.integers(2, 6, 16), rng.integers(1, 6, 16))
    monkeypatch.setattr(QuickJit, "__call__", look)
    cluster.log_probs("actor", sequences, temperature=1.0)
    kit.update(cluster, sequences, temperature=1.0)
    return found["forward"], found["accumulate"]


slow = pytest.mark.slow
# Whose parts are in another case is slow.
CASES = [
    # Rows know nothing of each other; gradients are added up.
    pytest.param("data=2", {}, {"all-reduce": PARAMETERS}, marks=slow),
    # Attention and MLP of each layer add up once, and the embedding does; backwards each of q, k,
    # v, gate and up does, for what it read. The compiler adds up the embedding's gradient in parts.
    pytest.param(
        "tensor=2",
        {"all-reduce": (2 * LAYERS + 1) * STREAM},
        {"all-reduce": (2 * LAYERS + 1 + 5 * LAYERS) * STREAM, "all-gather": EMBEDDING},
        marks=slow,
    ),
    # Two key heads on four devices go, and their gradients come back, to both that hold a head.
    (
        "tensor=4",
        {"all-reduce": (2 * LAYERS + 1) * STREAM, "all-gather": KEYS_AND_VALUES},
        {
            "all-reduce": (2 * LAYERS + 1 + 5 * LAYERS) * STREAM + KEYS_AND_VALUES // 2,
            "all-gather": 2 * KEYS_AND_VALUES + EMBEDDING,
        },
    ),
    # Each token sees keys and values of the whole row; what the actions follow from may stand on
    # either device, as may the action itself. Gradients go back the same ways.
    pytest.param(
        "sequence=2",
        {"all-gather": KEYS_AND_VALUES + ACTIONS, "all-reduce": PICKED},
        {
            "all-gather": KEYS_AND_VALUES + ACTIONS + PICKED,
            "all-reduce": PICKED + KEYS_AND_VALUES + PARAMETERS,
        },
        marks=slow,
    ),
]


@pytest.mark.parametrize(("mesh", "forward", "update"), CASES)
def test_passes_send_what_they_must(kit, sent, monkeypatch, mesh, forward, update):
    assert sent_by(kit, sent, monkeypatch, mesh) == (forward, update)


def test_a_vocabulary_on_two_devices_sends_three_numbers_an_action(kit, sent, monkeypatch):
    """Largest logit, sum of exponentials, logit of the target; back, what it followed from."""
    forward, update = sent_by(kit, sent, monkeypatch, "tensor=2", "tensor")
    heads = (2 * LAYERS + 1) * STREAM
    assert forward == {"all-reduce": heads + 3 * ACTIONS}
    assert update == {"all-reduce": heads + 5 * LAYERS * STREAM + 3 * ACTIONS + PICKED}


def test_rows_and_length_on_two_devices_each(kit, sent, monkeypatch):
    """Of half the rows, what `sequence=2` sends; gradients are added up over both axes in turn."""
    forward, update = sent_by(kit, sent, monkeypatch, "data=2,sequence=2")
    assert forward == {"all-gather": (KEYS_AND_VALUES + ACTIONS) // 2, "all-reduce": PICKED // 2}
    assert update["all-gather"] == (KEYS_AND_VALUES + ACTIONS + PICKED) // 2
    assert update["all-reduce"] <= (PICKED + KEYS_AND_VALUES) // 2 + 2 * PARAMETERS


def test_parameters_are_gathered_and_no_activation_is(kit, sent, monkeypatch):
    """Backwards the head and the norms' scales once more, which are small."""
    forward, update = sent_by(kit, sent, monkeypatch, "fsdp=2")
    assert forward == {"all-gather": PARAMETERS}
    assert PARAMETERS <= update.pop("all-gather") <= PARAMETERS + 12 * WIDTH + 5 * WIDTH
    assert update == {"all-reduce": PARAMETERS}
