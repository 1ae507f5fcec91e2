"""Time and memory of weight transfers, beside a plain copy of as many bytes.

    python benchmarks/weight_transfer.py            # 135M and 1B parameters in float32
    python benchmarks/weight_transfer.py --millions 135

The receiver of shared memory is a process of its own, and the time runs until it has answered that
it has touched every page. Memory is what a transfer adds to the sender's own (resident, shared
pages counted) at its worst: the two buffers, which stay for all later transfers. Within a process
references are handed over.
"""

import argparse
import multiprocessing
import os
import threading
import time

import numpy as np
from zootomy.rollout.transfer import Direct, SharedMemory, TransferConfig

LAYERS = 24
PAGE = os.sysconf("SC_PAGE_SIZE")


def weights(millions):
    """Arrays of a decoder's proportions: one large, many middling, some small."""
    total = millions * 1_000_000
    embedding = total // 10
    matrix = (total - embedding) // (LAYERS * 4)
    arrays = {"embed": np.ones(embedding, np.float32)}
    for layer in range(LAYERS):
        for part in range(4):
            arrays[f"layers.{layer}.{part}"] = np.ones(matrix, np.float32)
        arrays[f"layers.{layer}.norm"] = np.ones(2048, np.float32)
    return arrays


def resident():
    """Bytes that this process holds in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


class Peak:
    """Largest resident size beyond that at the start, sampled every two milliseconds."""

    def __enter__(self):
        self.start, self.most, self.going = resident(), 0, True
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self):
        while self.going:
            self.most = max(self.most, resident() - self.start)
            time.sleep(0.002)

    def __exit__(self, *_):
        self.going = False
        self.thread.join()


def receive(line, config):
    """The other process: take each delivery, look into every array, answer."""
    transfer = SharedMemory(config)
    while (delivery := line.recv()) is not None:
        received = transfer.receive(delivery)
        # One number of every page, as an engine would at least.
        line.send(sum(float(array[:: PAGE // 4].sum()) for array in received.arrays.values()))


def measure(arrays, config, rounds):
    """Seconds of each round, and the most bytes they added."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, config))
    child.start()
    transfer = SharedMemory(config)
    times = []
    with Peak() as peak:
        for version in range(rounds):
            began = time.perf_counter()
            delivery = transfer.send(arrays, version)
            ours.send(delivery)
            ours.recv()
            times.append(time.perf_counter() - began)
            transfer.accepted(delivery)
    ours.send(None)
    child.join()
    transfer.close()
    return times, peak.most


def measure_direct(arrays, rounds):
    """The same within a process."""
    transfer, times = Direct(), []
    with Peak() as peak:
        for version in range(rounds):
            began = time.perf_counter()
            delivery = transfer.send(arrays, version)
            transfer.receive(delivery)
            transfer.accepted(delivery)
            times.append(time.perf_counter() - began)
    return times, peak.most


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=int, nargs="*", default=[135, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print("| parameters | bytes | what | first | later (median) | memory |")
    print("|---|---|---|---|---|---|")
    for millions in given.millions:
        arrays = weights(millions)
        size = sum(array.nbytes for array in arrays.values())
        target = {name: np.empty_like(array) for name, array in arrays.items()}
        copies = []
        for _ in range(given.rounds):
            began = time.perf_counter()
            for name, array in arrays.items():
                np.copyto(target[name], array)
            copies.append(time.perf_counter() - began)
        del target
        rows = [("memcpy", copies, size)]
        rows.append(("same process", *measure_direct(arrays, given.rounds)))
        for label, summed in (("shared memory", False), ("shared memory, checksums", True)):
            config = TransferConfig(bucket_mib=64, checksum=summed)
            rows.append((label, *measure(arrays, config, given.rounds)))
        for label, times, most in rows:
            middle = float(np.median(times[2:]))
            print(
                f"| {millions}M | {size / 1e9:.2f} GB | {label} | {times[0]:.2g} s | "
                f"{middle:.2g} s | {most / 1e9:.2f} GB |",
                flush=True,
            )


if __name__ == "__main__":
    main()
