"""Weights arrive whole or not at all: every backend keeps what the interface promises."""

import itertools
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from zootomy import ZootomyError
from zootomy.models import make_model
from zootomy.rollout import RolloutConfig, check_available, make_engine
from zootomy.rollout.transfer import (
    Direct,
    SharedMemory,
    TensorInfo,
    TransferConfig,
    TransferError,
    make_transfer,
    plan_buckets,
)
from zootomy.rollout.transfer import shared_memory as module

SUMMED = TransferConfig(bucket_mib=1, checksum=True)


def weights(version=0):
    """Odd shapes, two dtypes, a transposed view; more than one bucket of 1 MiB."""
    key = jax.random.key(version)
    return {
        "w": jax.random.normal(key, (700, 401)),
        "turned": np.asarray(jax.random.normal(key, (3, 5))).T,
        "half": jax.random.normal(key, (7,), jnp.bfloat16),
        "wide": np.asarray(jax.random.normal(key, (401, 700))).T,
    }


def assert_same(received, sent):
    assert list(received) == list(sent)
    for name, array in sent.items():
        assert received[name].dtype == np.asarray(array).dtype
        np.testing.assert_array_equal(received[name], np.asarray(array))


@pytest.fixture(params=["direct", "shared_memory", "shared_memory, summed"])
def transfer(request):
    made = Direct() if request.param == "direct" else SharedMemory(
        SUMMED if "summed" in request.param else TransferConfig(bucket_mib=1)
    )  # fmt: skip
    yield made
    made.close()


def test_what_is_sent_arrives_under_its_version(transfer):
    for version in range(4):
        delivery = transfer.send(weights(version), version)
        received = transfer.receive(delivery)
        assert received.version == version
        assert_same(received.arrays, weights(version))
        transfer.accepted(delivery)


def test_accepted_weights_outlive_the_next_ones(transfer):
    first = transfer.send(weights(0), 0)
    held = transfer.receive(first).arrays
    transfer.accepted(first)
    transfer.receive(transfer.send(weights(1), 1))
    # refused by the engine and sent again: the buffer in use is not the one that is filled
    transfer.send(weights(2), 2)
    assert_same(held, weights(0))


def test_the_same_process_copies_nothing():
    transfer, array = Direct(), jnp.arange(6.0)
    assert transfer.receive(transfer.send({"w": array}, 3)).arrays["w"] is array


def test_weights_that_were_not_accepted_are_let_go():
    transfer = Direct()
    first, refused = transfer.send({"w": 1 + jnp.arange(2)}, 3), transfer.send(weights(), 3)
    transfer.accepted(first)
    assert transfer.receive(first).arrays["w"].tolist() == [1, 2]
    with pytest.raises(TransferError) as error:
        transfer.receive(refused)
    assert str(error.value) == (
        "Weights of version 3 are not held any more; the engine keeps the weights it has."
    )


def test_a_bucket_is_bounded_and_every_byte_is_in_one():
    # 4-byte floats: 3, 20 and 1 of them in buckets of 32 bytes
    tensors = [TensorInfo(n, (k,), "float32") for n, k in (("a", 3), ("b", 20), ("c", 1))]
    buckets = plan_buckets(tensors, 32)
    sizes = [sum(p.stop - p.start for p in bucket) for bucket in buckets]
    assert sizes == [32, 32, 32]  # 12 + 80 + 4 = 96 bytes
    for index, info in enumerate(tensors):
        pieces = [p for bucket in buckets for p in bucket if p.tensor == index]
        assert pieces[0].start == 0
        assert pieces[-1].stop == info.nbytes
        assert all(x.stop == y.start for x, y in itertools.pairwise(pieces))


def test_a_sender_that_dies_half_way_leaves_the_version_before(monkeypatch):
    transfer = SharedMemory(TransferConfig(bucket_mib=1))
    first = transfer.send(weights(0), 0)
    transfer.accepted(first)
    written = []

    def dies(*given):
        written.append(given)
        if len(written) == 2:
            raise KeyboardInterrupt
        return fill(*given)

    fill = module.fill
    monkeypatch.setattr(module, "fill", dies)
    with pytest.raises(KeyboardInterrupt):
        transfer.send(weights(1), 1)
    assert_same(transfer.receive(first).arrays, weights(0))
    transfer.close()


def test_a_half_written_buffer_is_refused(monkeypatch):
    transfer = SharedMemory()
    delivery = transfer.send(weights(0), 0)
    header, _ = module._parts(transfer._segments[0])
    header[1] = module.FILLING
    with pytest.raises(TransferError, match="version 0 did not arrive: the buffer is half-written"):
        transfer.receive(delivery)
    header[1], header[0] = module.WHOLE, 5
    with pytest.raises(TransferError, match="did not arrive: the buffer is of version 5"):
        transfer.receive(delivery)
    del header
    transfer.close()


def test_a_changed_byte_is_noticed_where_buckets_are_summed_up():
    transfer = SharedMemory(SUMMED)
    delivery = transfer.send(weights(0), 0)
    _, buffer = module._parts(transfer._segments[0])
    buffer[1_200_000] ^= 1  # in the second bucket of 1 MiB
    with pytest.raises(TransferError, match="Bucket 1 of version 0 arrived changed"):
        transfer.receive(delivery)
    del buffer
    transfer.close()


def test_weights_of_a_sender_that_is_gone_are_refused():
    transfer, other = SharedMemory(), SharedMemory()
    delivery = transfer.send(weights(0), 0)
    transfer.close()
    with pytest.raises(TransferError, match="is gone: the trainer's process has ended"):
        other.receive(delivery)


def test_another_process_reads_them_and_leaves_them_there(tmp_path):
    transfer = SharedMemory(SUMMED)
    delivery = transfer.send(weights(0), 0)
    code = (
        "import pickle, sys, numpy as np;"
        "from zootomy.rollout.transfer import SharedMemory, TransferConfig;"
        "t = SharedMemory(TransferConfig(bucket_mib=1, checksum=True));"
        "d = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "print(float(np.float64(t.receive(d).arrays['w']).sum()))"
    )
    for _ in range(2):  # the first reader's end takes nothing away from the second
        done = subprocess.run(
            [sys.executable, "-c", code, pickle.dumps(delivery).hex()],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert float(done.stdout) == pytest.approx(
            float(np.float64(np.asarray(weights(0)["w"])).sum())
        )
        assert done.stderr == ""
    transfer.close()


def test_no_room_is_a_sentence(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "Segment", full)
    with pytest.raises(ZootomyError, match="There is no shared memory for 2 MiB of weights"):
        SharedMemory().send(weights(0), 0)


def test_auto_follows_where_the_engine_lives():
    assert isinstance(make_transfer(TransferConfig(), other_process=False), Direct)
    assert isinstance(make_transfer(TransferConfig(), other_process=True), SharedMemory)


def test_a_backend_that_cannot_reach_the_engine_is_refused():
    with pytest.raises(ZootomyError) as error:
        make_transfer(TransferConfig(backend="direct"), other_process=True)
    assert str(error.value) == (
        "rollout.transfer.backend is 'direct', which stays within a process, and the engine runs "
        "in another; leave it 'auto'"
    )


def test_a_backend_that_would_move_nothing_is_refused():
    config = RolloutConfig(transfer=TransferConfig(backend="shared_memory"))
    with pytest.raises(ZootomyError) as error:
        make_engine(config, make_model("tiny", vocab_size=5))
    assert str(error.value) == (
        "rollout.transfer.backend is 'shared_memory', and the engine runs in the trainer's "
        "process, where weights are shared or read in place; leave it 'auto'"
    )


@pytest.mark.parametrize("settings, text", [
    ({"checksum": True}, "rollout.transfer.checksum is True, and the engine runs in the trainer's "
                         "process, where nothing is sent in buckets; leave it out, or run the "
                         "engine in a process of its own (rollout.vllm.server_mode)"),
    ({"bucket_mib": 8}, "rollout.transfer.bucket_mib is 8, and the engine runs in the trainer's"),
])  # fmt: skip
def test_settings_of_a_transfer_that_does_not_take_place_are_refused(settings, text):
    config = RolloutConfig(transfer=TransferConfig(**settings))
    with pytest.raises(ZootomyError) as error:
        check_available(config)
    assert str(error.value).startswith(text)


def test_a_bucket_is_a_whole_number():
    with pytest.raises(ZootomyError) as error:
        TransferConfig(bucket_mib=1.5)  # type: ignore[arg-type]
    assert str(error.value) == "rollout.transfer.bucket_mib is 1.5; expected an integer >= 1"


def test_backends_that_only_have_a_seat():
    with pytest.raises(ZootomyError) as error:
        TransferConfig(backend="nccl")  # type: ignore[arg-type]
    assert str(error.value) == (
        "rollout.transfer.backend is 'nccl'; expected one of auto, direct, shared_memory, ray. "
        "'nccl' and 'ici' have a documented seat, and no implementation yet."
    )
