"""Weights through Ray's object store, to a process that Ray started."""

import jax.numpy as jnp
import numpy as np
import pytest
from zootomy.rollout.extras import installed
from zootomy.rollout.transfer import TransferConfig, TransferError, make_transfer

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(installed("ray") is None, reason="ray is not installed"),
]
CONFIG = TransferConfig(backend="ray", bucket_mib=1, checksum=True)


def weights(version):
    return {
        "w": np.full((700, 801), version, np.float32),  # three buckets
        "half": jnp.full(7, version + 0.5, jnp.bfloat16),
    }


@pytest.fixture(scope="module")
def ray():
    module = pytest.importorskip("ray")
    module.init(
        num_cpus=2, include_dashboard=False, object_store_memory=200 * 2**20,
        _node_ip_address="127.0.0.1", log_to_driver=False,
    )  # fmt: skip
    yield module
    module.shutdown()


def test_weights_arrive_in_another_process(ray):
    transfer = make_transfer(CONFIG, other_process=True)

    @ray.remote
    def read(delivery):
        received = make_transfer(CONFIG, other_process=True).receive(delivery)
        return received.version, float(received.arrays["w"].sum()), str(
            received.arrays["half"].dtype
        )  # fmt: skip

    for version in (1, 2):
        delivery = transfer.send(weights(version), version)
        assert len(delivery.where) == 3
        found = ray.get(read.remote(delivery))
        assert found == (version, version * 700.0 * 801, "bfloat16")
        transfer.accepted(delivery)
    transfer.close()


def test_a_changed_bucket_is_refused(ray):
    transfer = make_transfer(CONFIG, other_process=True)
    delivery = transfer.send(weights(1), 1)
    spoilt = ray.put(np.zeros(2**20, np.uint8))
    where = (delivery.where[0], spoilt, delivery.where[2])
    changed = type(delivery)(delivery.version, delivery.tensors, where, delivery.checksums)
    with pytest.raises(TransferError, match="Bucket 1 of version 1 arrived changed"):
        transfer.receive(changed)
    transfer.close()
