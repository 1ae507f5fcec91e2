"""A process that joins, watches, and does what its last word says.

python watch_child.py PORT PROCESSES PROCESS TIMEOUT WHAT
"""

import sys
import time

from zootomy.clusters import DistributedConfig, Watch, join_processes
from zootomy.registry import ZootomyError

port, processes, process, timeout, what = sys.argv[1:]
join_processes(
    DistributedConfig(
        coordinator=f"127.0.0.1:{port}",
        processes=int(processes),
        process=int(process),
        start_timeout=60,
        heartbeat_timeout=int(timeout),
    )
)
with Watch(float(timeout), host="127.0.0.1"):
    print("watching", flush=True)  # noqa: T201
    if what == "fails":
        time.sleep(1)
        raise ZootomyError("the disk is full.")
    if what == "waits":
        time.sleep(600)
