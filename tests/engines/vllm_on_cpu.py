"""Imports what a rank of a vLLM test needs, on vLLM's own CPU platform: it chooses one at its import, once."""

import os

os.environ["VLLM_TARGET_DEVICE"] = "cpu"

import vllm.distributed.device_communicators.cuda_communicator
import vllm.distributed.device_communicators.custom_all_reduce
import vllm.distributed.parallel_state
import vllm.plugins
import vllm.v1.worker.worker_base  # noqa: F401
from vllm.platforms import current_platform

assert current_platform.is_cpu()
