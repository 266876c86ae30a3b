"""`lmi check --from`: commands of TGI and vLLM become a serving.properties that this server reads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from serving import ENVIRON

from backends import registry
from lmi_handlers.config.properties import LoadedProperties, load_properties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.migration.tgi import translate_tgi
from lmi_handlers.migration.vllm import translate_vllm

OPTIONS = registry().options

LAUNCHER = """docker run --gpus all --shm-size 1g -e HF_TOKEN=hf_secret -p 8080:80 -v /cache/text-generation-inference:/data \\
    ghcr.io/huggingface/text-generation-inference:3.3.4 --model-id bigscience/bloom-560m --num-shard=2 --quantize awq \\
    --max_input_tokens 4096 --trust-remote-code --max-batch-total-tokens 30000 --max-client-batch-size 8 -p 80"""

LAUNCHER_FILE = """\
# Made by lmi check --from tgi. Save it as serving.properties, and start the server with
#   HF_TOKEN='<the value of HF_TOKEN>' lmi serve --model-dir . --port 8080

# /invocations speaks TGI's API; its own routes are always there
option.tgi_compat=true

# --model-id bigscience/bloom-560m
option.model_id=bigscience/bloom-560m

# --num-shard 2
option.tensor_parallel_degree=2

# --quantize awq
option.quantize=awq

# --max-input-tokens 4096
option.max_input_tokens=4096

# --trust-remote-code
option.trust_remote_code=true

# --max-client-batch-size 8
option.max_client_batch_size=8

# Not in this file:
#   --max-batch-total-tokens: the size of the KV cache limits a batch, option.kv_cache_memory_bytes; the engine decides by \
the memory that is free and by option.max_rolling_batch_prefill_tokens
#   --gpus all --shm-size 1g -v /cache/text-generation-inference:/data: options of the container, without a counterpart here
"""

VLLM = """CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3-8B --max-model-len 32k -tp 2 --served-model-name chat qwen \\
    --enable-auto-tool-choice --tool-call-parser hermes --api-key sk-secret sk-other -O3 --no-enable-prefix-caching \\
    --compilation-config.cudagraph_mode FULL --compilation-config.pass_config.fuse_norm_quant true \\
    --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' --allowed-origins '["https://a.example"]' \\
    --limit-mm-per-prompt image=2,video=0 --dtype bfloat16 --seed -1 --uvicorn-log-level info --port 9000"""

VLLM_FILE = """\
# Made by lmi check --from vllm. Save it as serving.properties, and start the server with
#   CUDA_VISIBLE_DEVICES=0,1 LMI_API_KEY_FILE='<a file with the values of --api-key>' lmi serve --model-dir . --port 9000

# vllm serve
option.rolling_batch=vllm

# vllm's default
option.generation_config=auto

# --tensor-parallel-size 2
option.tensor_parallel_degree=2

# model Qwen/Qwen3-8B
option.model_id=Qwen/Qwen3-8B

# --max-model-len 32k
option.max_model_len=32000

# --served-model-name chat qwen
option.served_model_name=chat,qwen

# --enable-auto-tool-choice
option.enable_auto_tool_choice=true

# --tool-call-parser hermes
option.tool_call_parser=hermes

# --optimization-level 3
option.optimization_level=3

# --no-enable-prefix-caching
option.enable_prefix_caching=false

# --speculative-config {"method": "ngram", "num_speculative_tokens": 4}
option.speculative_config={"method": "ngram", "num_speculative_tokens": 4}

# --allowed-origins ["https://a.example"]
cors_allowed_origin=https://a.example

# --limit-mm-per-prompt image=2,video=0
option.limit_mm_per_prompt={"image": 2, "video": 0}

# --dtype bfloat16
option.dtype=bf16

# --seed -1
option.seed=-1

# --compilation-config.*
option.compilation_config={"cudagraph_mode": "FULL", "pass_config": {"fuse_norm_quant": true}}

# Not in this file:
#   --api-key: the file has one line per value, with a label before it
#   --uvicorn-log-level: the HTTP server is gunicorn; LOG_FORMAT and option.client_timeout are its settings
"""


def options(text: str) -> list[str]:
    """The lines of the file that set something."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def loaded(text: str, directory: Path) -> LoadedProperties:
    (directory / "serving.properties").write_text(text)
    return load_properties(directory, {}, registry())


def test_a_launcher_in_a_container(tmp_path: Path) -> None:
    text = translate_tgi(LAUNCHER, OPTIONS)
    assert text == LAUNCHER_FILE
    properties = loaded(text, tmp_path).properties
    assert (properties.tgi_compat, properties.model_id, properties.max_input_tokens) == (
        True,
        "bigscience/bloom-560m",
        4096,
    )
    assert loaded(text, tmp_path).unknown_names(registry().backends["vllm"]) == ()


def test_variables_of_the_launcher() -> None:
    text = translate_tgi("MODEL_ID=gpt2 SHARDED=true HOME=/root text-generation-launcher --max-best-of 3", OPTIONS)
    assert options(text) == [
        "option.tgi_compat=true",
        "option.model_id=gpt2",
        "option.tensor_parallel_degree=max",
        "option.max_best_of=3",
    ]


def test_vllm_serve(tmp_path: Path) -> None:
    text = translate_vllm(VLLM, OPTIONS)
    assert text == VLLM_FILE
    properties = loaded(text, tmp_path).properties
    assert (
        properties.extra["compilation_config"] == '{"cudagraph_mode": "FULL", "pass_config": {"fuse_norm_quant": true}}'
    )
    assert properties.limit_mm_per_prompt == '{"image": 2, "video": 0}'


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--num-shard 2 --sharded true", "option.tensor_parallel_degree=2"),
        ("--sharded false", "option.tensor_parallel_degree=1"),
        ("--cors-allow-origin http://a --cors-allow-origin http://b", "cors_allowed_origin=http://a,http://b"),
        ("--otlp-endpoint http://c:4317", "#   --otlp-endpoint: TGI sends gRPC, this server HTTP: set OTEL_EXPORTER_"),
    ],
)
def test_flags_of_the_launcher_that_need_each_other(flags: str, line: str) -> None:
    text = translate_tgi(f"text-generation-launcher {flags}", OPTIONS)
    assert f"\n{line}" in text
    assert text.count("tensor_parallel_degree") <= 1


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("-cc.cudagraph_mode=FULL -cc.pass_config.x 2k", '{"cudagraph_mode": "FULL", "pass_config": {"x": 2000}}'),
        ("--kv-transfer-config.list+ a --kv-transfer-config.list+ b,c", '{"list": ["a", "b", "c"]}'),
        ("--override-generation-config '{}'", "#   --override-generation-config: change the model"),
        ("--otlp-traces-endpoint grpc://c:4317", "#   --otlp-traces-endpoint: vLLM sends gRPC, this server HTTP: set"),
    ],
)
def test_flags_of_vllm_as_vllm_reads_them(flags: str, line: str) -> None:
    assert line in translate_vllm(f"vllm serve m {flags}", OPTIONS)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "vllm serve m 2>&1 | tee log",
            "vllm serve m>log",
            "vllm serve m &",
            "vllm serve m && echo x",
            "vllm serve m; ls",
        ),
        "sudo docker run --volume=/cache/vllm:/root --network vllm-net -itv /a/vllm:/b --rm vllm/vllm-openai m",
        "docker run -d -v/vllm:/b --gpus all vllm/vllm-openai:latest vllm serve m",
    ],
)
def test_only_the_command_itself_is_read(text: str) -> None:
    assert options(translate_vllm(text, OPTIONS)) == options(translate_vllm("vllm serve m", OPTIONS))


def test_a_second_model_is_refused() -> None:
    with raises(ConfigError, "vllm serve one model b"):
        translate_vllm("vllm serve a b", OPTIONS)


def test_no_secret_is_written_down() -> None:
    text = translate_vllm(
        "docker run -e AWS_SECRET_ACCESS_KEY=s3 -e DB_PASSWORD=s3 -e A=1 vllm/vllm-openai m --hf-token s3", OPTIONS
    )
    assert "s3" not in text
    names = ("AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "HF_TOKEN")
    assert all(re.search(rf"\b{name}='<the value of ", text) for name in names)
    assert " A=1 " in text
    assert "s3" not in translate_tgi("docker run -e OTHER_KEY=s3 -e API_KEY=s3 text-generation-inference", OPTIONS)


def test_a_pooling_model() -> None:
    text = translate_vllm(
        "docker run vllm/vllm-openai:v0.11 --model BAAI/bge-m3 --runner pooling --convert embed", OPTIONS
    )
    assert "option.task=text-embedding" in text
    assert "--runner pooling: set option.task" in text


def test_every_flag_of_the_launcher_is_known() -> None:
    """The names are those of `text-generation-launcher --help`, version 3.3."""
    for flag in (ROOT / "tests/data/tgi/launcher-flags.txt").read_text().split():
        translate_tgi(f"text-generation-launcher --{flag}=1", OPTIONS)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no command text-generation-launcher"),
        ("rm -rf /", "no text-generation-launcher rm -rf /"),
        ("text-generation-launcher --model-id 'x", "command not valid shell"),
        ("text-generation-launcher --model-id", "--model-id no"),
        ("text-generation-launcher --model_idd x", "text-generation-launcher no --model-idd"),
        ("text-generation-launcher gpt2", "text-generation-launcher no gpt2"),
        ("text-generation-launcher --hf-model-id gpt2", "text-generation-launcher no flag --hf-model-id"),
        ("text-generation-launcher --sm-num-gpus 2", "text-generation-launcher no flag --sm-num-gpus"),
        ("docker run tgi-inference --hf-token a", "text-generation-launcher no flag --hf-token"),
        ("docker run ubuntu", "command no text-generation-inference tgi-inference"),
    ],
)
def test_bad_commands(text: str, cause: str) -> None:
    with raises(ConfigError, cause):
        translate_tgi(text, OPTIONS)


@pytest.mark.parametrize("value", ["8.5", "8kk", "-2", "٣", "1" * 20])
def test_bad_numbers(value: str) -> None:
    with pytest.raises(ConfigError, match="--max-model-len has value"):
        translate_vllm(f"vllm serve m --max-model-len={value}", OPTIONS)


@given(st.text(st.characters(exclude_characters="\x00'"), max_size=40))
def test_a_value_is_read_back_as_it_was(value: str) -> None:
    from javaproperties import loads

    text = translate_vllm(f"vllm serve --model='{value or 'm'}'", OPTIONS)
    assert loads(text)["option.model_id"] == (value.replace("\\\n", " ") or "m")
    assert set(loads(text)) == {
        "option.rolling_batch",
        "option.model_id",
        "option.generation_config",
        "option.tensor_parallel_degree",
    }


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """The second command of each needs the hub, or vLLM, so the file is read here."""
    page = (ROOT / "docs" / "migrating.md").read_text()
    commands = re.findall(r"^(lmi check --from .*?) > serving.properties", page, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
    for command in commands:
        line = command.replace("lmi check", f"{sys.executable} -m lmi_handlers.commands.cli check", 1)
        printed = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=ENVIRON, check=True).stdout
        assert loaded(printed, tmp_path).properties.model_id == "HuggingFaceTB/SmolLM2-135M-Instruct"
