# two_terminals.py
import sys

import numpy as np

from roce_ring import AllReduce

rank, world = int(sys.argv[1]), int(sys.argv[2])
with AllReduce.from_rendezvous("127.0.0.1:29511", rank, world) as ring:
    x = np.full(1000, rank + 1, dtype=np.float32)
    total = ring.all_reduce(x)
    print(f"rank {rank} of {world}: {x[0]} -> {total[0]}")
    print("gathered:", ring.all_gather(np.array([rank], dtype=np.int32)))
