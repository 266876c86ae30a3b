"""Environment variables of vLLM. This module is imported before vLLM, which reads some of them only once."""

from __future__ import annotations

import logging
import os

from backends.vllm import LOG_LEVEL
from lmi_handlers.config.environment import declared_variables
from lmi_handlers.config.server_settings import ServerSettings

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # send no usage data
# This process has threads, and a forked child would inherit their locks. vLLM itself uses spawn on CPUs.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
# For vLLM's child processes, which warn about libraries that vLLM uses, and about what a failed start leaves behind.
os.environ.setdefault("PYTHONWARNINGS", "ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # each process would report how it binds threads and memory
os.environ["VLLM_LOGGING_LEVEL"] = LOG_LEVEL
logging.logProcesses = True  # vLLM's format has the number of the process, and the server has turned it off
if (
    ports := declared_variables(ServerSettings)["safe_ports"].value(os.environ)
) is not None:  # several containers share the instance
    os.environ.setdefault("VLLM_PORT", str(ports[0]))  # vLLM looks for free ports from here on
