"""Commands as people have them in scripts, terminals and manifests: what becomes of all that they say.

`lmi check` of what was written agrees with `lmi serve`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import starts
from configurations_page import configurations
from serving import Server
from starts import Files, check, serve, write

from backends import registry
from lmi_handlers.migration.tgi import translate_tgi
from lmi_handlers.migration.vllm import translate_vllm

environ = starts.environ
OPTIONS = registry().options
ENVIRONMENT = {"PWD": "/home/me/work", "HOME": "/home/me", "HF_TOKEN": "hf_secret"}
"""What the shell knows in which these commands are typed."""

CONFIGURATIONS = {name: files for named in configurations().values() for name, files in named.items()}
ALWAYS = {
    "vllm": {"option.rolling_batch=vllm", "option.generation_config=auto", "option.tensor_parallel_degree=1"},
    "tgi": {"option.tgi_compat=true"},
}
QWEN, M, GPT2 = "option.model_id=Qwen/Qwen3-8B", "option.model_id=m", "option.model_id=gpt2"
OURS, TWO = "option.model_id=/home/me/work/models/a", "option.tensor_parallel_degree=2"
EVENTS = "option.output_formatter=sse"

# Command, the lines that it becomes besides `ALWAYS`, and what the comments must say.
Case = tuple[str, tuple[str, ...], tuple[str, ...]]

VLLM: list[Case] = [
    # How they begin
    ("vllm serve Qwen/Qwen3-8B", (QWEN,), ("lmi serve --model-dir . --port 8000",)),
    ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-8B", (QWEN,), ("--port 8000",)),
    ("python3 -u -m vllm.entrypoints.openai.api_server --model=Qwen/Qwen3-8B --port 80", (QWEN,), ("--port 80",)),
    ("/opt/venv/bin/python3.12 -m vllm.entrypoints.cli.main serve Qwen/Qwen3-8B", (QWEN,), ()),
    ("/usr/local/bin/vllm serve Qwen/Qwen3-8B --dtype half", (QWEN, "option.dtype=fp16"), ()),
    ("uv run vllm serve Qwen/Qwen3-8B", (QWEN,), ("uv run: put what still applies before lmi serve",)),
    ("uv run --with vllm==0.11 -- python -m vllm.entrypoints.openai.api_server --model m", (M,), ("uv run",)),
    ("nohup vllm serve Qwen/Qwen3-8B > vllm.log 2>&1 &", (QWEN,), ("nohup: put",)),
    ("timeout 60 vllm serve Qwen/Qwen3-8B", (QWEN,), ("timeout 60: put",)),
    ("setsid -f vllm serve Qwen/Qwen3-8B </dev/null &>log", (QWEN,), ("setsid -f: put",)),
    ("sudo -E vllm serve Qwen/Qwen3-8B", (QWEN,), ("sudo -E: put",)),
    ("exec vllm serve Qwen/Qwen3-8B", (QWEN,), ()),
    ("env CUDA_VISIBLE_DEVICES=1 vllm serve Qwen/Qwen3-8B", (QWEN,), ("CUDA_VISIBLE_DEVICES=1 lmi serve",)),
    ("VLLM_USE_V1=1 numactl -N 0 vllm serve Qwen/Qwen3-8B", (QWEN,), ("VLLM_USE_V1=1 lmi serve", "numactl -N 0: put")),
    ("--model Qwen/Qwen3-8B -tp 4 --port 8001", (QWEN, "option.tensor_parallel_degree=4"), ("--port 8001",)),
    ("CUDA_VISIBLE_DEVICES=2 bash -c 'vllm serve Qwen/Qwen3-8B'", (QWEN,), ("CUDA_VISIBLE_DEVICES=2 lmi serve",)),
    ('tmux new-session -d "vllm serve Qwen/Qwen3-8B --port 9"', (QWEN,), ("--port 9",)),
    # Scripts
    ("cd /srv && . venv/bin/activate && vllm serve Qwen/Qwen3-8B", (QWEN,), ("cd /srv; . venv/bin/activate: not part",)),
    ("#!/bin/sh\nset -e\nexport A=1\nvllm serve Qwen/Qwen3-8B # chat\necho done\n", (QWEN,), ("A=1 lmi serve", "set -e")),
    ("MODEL=Qwen/Qwen3-8B\nvllm serve $MODEL \\\n  --port ${PORT:-7000}\n", (QWEN,), ("--port 7000",)),
    ('ARGS="-tp 2 --dtype auto"; vllm serve "Qwen/Qwen3-8B" $ARGS', (QWEN, TWO, "option.dtype=auto"), ()),
    ("vllm serve $model", ("option.model_id=$model",), ("$model: the value is not known here",)),
    ("vllm serve $(cat name) --host `hostname`", ("option.model_id=$(cat name)",), ("$(cat name), `hostname`: the value",)),
    ("vllm serve $(pwd)/models/a", (OURS,), ()),
    ("vllm serve '$PWD/a b'", ("option.model_id=$PWD/a b",), ()),
    # Flags
    ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size=2", (QWEN, TWO), ()),
    ("vllm serve Qwen/Qwen3-8B -dp 2", (QWEN, "minWorkers=2"), ()),
    ("vllm serve m -pp 2 -tp 8", (M, "option.pipeline_parallel_degree=2", "option.tensor_parallel_degree=8"), ()),
    ("vllm serve --config serve.yaml", (), ("--config: pass the entries of this file as flags",)),
    ("vllm serve Qwen/Qwen3-8B --host 0.0.0.0 --port 8080", (QWEN,), ("--host 0.0.0.0 --port 8080",)),
    ("vllm serve Qwen/Qwen3-8B --quantization fp8", (QWEN, "option.quantize=fp8"), ()),
    ("vllm serve Qwen/Qwen3-8B --api-key $HF_TOKEN", (QWEN,), ("API_KEY='<the value of --api-key>'",)),
    ("vllm serve m --max_model_len 8K --enforce-eager", (M, "option.max_model_len=8192", "option.enforce_eager=true"), ()),
    ("vllm serve Qwen/Qwen3-8B --reasoning-parser qwen3", (QWEN, "option.reasoning_parser=qwen3"), ()),
    ("vllm serve Qwen/Qwen3-8B --ssl-keyfile k.pem", (QWEN,), ("--ssl-keyfile: put a proxy",)),
    ("vllm serve BAAI/bge-m3 --task embed", ("option.model_id=BAAI/bge-m3", "option.task=text-embedding"), ()),
    # Containers
    ("docker run --gpus all -p 8000:8000 vllm/vllm-openai --model m", (M,), ("--port 8000", "--gpus all: options")),
    ("docker run --gpus '\"device=0,2\"' vllm/vllm-openai --model Qwen/Qwen3-8B", (QWEN,), ("CUDA_VISIBLE_DEVICES=0,2 lmi",)),
    ("docker run --gpus 2 vllm/vllm-openai --model Qwen/Qwen3-8B -tp 2", (QWEN, TWO), ("CUDA_VISIBLE_DEVICES=0,1",)),
    ("podman run -p 127.0.0.1:9000:80 vllm/vllm-openai --model m --port 80", (M,), ("--port 9000 --host 127.0.0.1",)),
    ("docker run -v $(pwd)/models:/models vllm/vllm-openai --model /models/a", (OURS,), ()),
    ("docker run --mount type=bind,src=/srv,dst=/m vllm/vllm-openai:v0.9 --model=/m/a", ("option.model_id=/srv/a",), ()),
    ("docker run -itd --rm --ipc=host -e HF_TOKEN vllm/vllm-openai --model m", (M,), ("HF_TOKEN: set for", "--ipc=host: opt")),
    ("sudo docker run --network host -eLEVEL=DEBUG vllm/vllm-openai m", (M,), ("LEVEL=DEBUG", "--port 8000")),
    ("docker run --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=3 vllm/vllm-openai m", (M,), ("CUDA_VISIBLE_DEVICES=3",)),
    ("docker run --entrypoint python3 vllm/vllm-openai -m vllm.entrypoints.openai.api_server --model m", (M,), ()),
    ("docker run --entrypoint bash vllm/vllm-openai -c 'vllm serve m --seed 1'", (M, "option.seed=1"), ()),
    ("docker run -p 9000:8080 -e SM_VLLM_MODEL=m -e SM_VLLM_TENSOR_PARALLEL_SIZE=2 -e SM_VLLM_API_KEY=hf_secret a/vllm:1",
     (M, TWO, EVENTS), ("lmi serve --model-dir . --port 9000", "API_KEY='<the value of --api-key>'")),
    ("vllm serve m --enable-sleep-mode", (M,), ("--enable-sleep-mode: PUT /models/<model>?min_worker=0",)),
    ("docker run -e SM_VLLM_MODEL=m -e SM_VLLM_SEED=1 -e SM_VLLM_ENABLE_LORA=false a/vllm:1 --seed 2",
     (M, "option.seed=2", EVENTS), ()),
    *((f"{before} m", (M,), ("SM_VLLM_SEED: only SageMaker's image of vLLM reads it", "lmi serve --model-dir . --port 8000"))
      for before in ("SM_VLLM_SEED=1 vllm serve", "export SM_VLLM_SEED=1; vllm serve", "env SM_VLLM_SEED=1 vllm serve")),
    ("SM_VLLM_SEED= SM_VLLM_API_KEY=hf_secret vllm serve m", (M,), ("SM_VLLM_SEED: only", "SM_VLLM_API_KEY: only")),
]  # fmt: skip

TGI: list[Case] = [
    ("text-generation-launcher --model-id gpt2", (GPT2,), ("--port 3000",)),
    ("text-generation-launcher --model-id gpt2 -p 8080 --hostname 0.0.0.0", (GPT2,), ("--port 8080",)),
    ("nohup text-generation-launcher --model-id gpt2 &", (GPT2,), ("nohup: put",)),
    ("CUDA_VISIBLE_DEVICES=0 text-generation-launcher --model-id gpt2", (GPT2,), ("CUDA_VISIBLE_DEVICES=0 lmi",)),
    ("model=gpt2\nvolume=$PWD/data\ndocker run --gpus all --shm-size 1g -p 8080:80 -v $volume:/data \\\n"
     "  ghcr.io/huggingface/text-generation-inference:3.3.4 --model-id $model",
     (GPT2,), ("--port 8080", "-v /home/me/work/data:/data: options of the container")),
    ("docker run -v /srv/models:/data text-generation-inference --model-id /data/a", ("option.model_id=/srv/models/a",), ()),
    ("docker run -e MODEL_ID=/data/a -v /srv:/data/ text-generation-inference", ("option.model_id=/srv/a",), ()),
    ("docker run -p 9000:8080 -e HF_MODEL_ID=gpt2 -e SM_NUM_GPUS=2 -e HF_MODEL_QUANTIZE=fp8 "
     "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.4.0-tgi3.3.6-gpu-py311",
     (GPT2, TWO, "option.quantize=fp8"), ("lmi serve --model-dir . --port 9000",)),
    *((f"docker run -p 9000:8080 -e {names} tgi-inference --model-id b --port 1", (GPT2, *lines), ("--port 9000",))
      for names, *lines in (
          ("MODEL_ID=a -e HF_MODEL_ID=gpt2",),
          ("HF_MODEL_ID=gpt2 -e MODEL_ID=a -e PORT=2",),
          ("HF_MODEL_ID=gpt2 -e HF_MODEL_REVISION=b -e REVISION=a", "option.revision=b"),
          ("HF_MODEL_ID=gpt2 -e HF_MODEL_REVISION= -e REVISION=a", "option.revision=a"),
          ("HF_MODEL_ID=gpt2 -e HF_MODEL_QUANTIZE=fp8 -e QUANTIZE=eetq", "option.quantize=fp8"),
          ("HF_MODEL_ID=gpt2 -e HF_MODEL_TRUST_REMOTE_CODE=true -e TRUST_REMOTE_CODE=false", "option.trust_remote_code=true"),
          ("HF_MODEL_ID=gpt2 -e SM_NUM_GPUS=2 -e NUM_SHARD=1 -e SHARDED=false", TWO),
      )),
    ("docker run -p 9000:80 --entrypoint text-generation-launcher -e HF_MODEL_ID=a tgi-inference --model-id gpt2",
     (GPT2,), ("HF_MODEL_ID=a lmi serve --model-dir . --port 9000",)),
    ("docker run -p 80:80 -e HF_MODEL_ID=gpt2 text-generation-inference", (),
     ("HF_MODEL_ID=gpt2 lmi serve --model-dir . --port 80",)),
    ("docker run -e MODEL_ID=gpt2 -e HF_MODEL_ID=a text-generation-inference", (GPT2,), ("HF_MODEL_ID=a lmi serve",)),
    ("REVISION=a HF_MODEL_REVISION=b text-generation-launcher --model-id gpt2", (GPT2, "option.revision=a"), ()),
    ("text-generation-launcher --quantize bitsandbytes", ("option.quantize=bitsandbytes8",), ()),
    ("text-generation-launcher --quantize bitsandbytes-nf4", ("option.quantize=bitsandbytes4",), ()),
    ("text-generation-launcher --quantize eetq", (), ("--quantize eetq: no engine has it",)),
    ("HF_MODEL_QUANTIZE=exl2 text-generation-launcher", (), ("HF_MODEL_QUANTIZE exl2: no engine reads such files",)),
    ("text-generation-launcher --quantize marlin", (), ("--quantize marlin: vllm chooses these kernels itself",)),
    ("--quantize fp8 --kv-cache-dtype fp8_e4m3fn", ("option.quantize=fp8", "option.kv_cache_dtype=fp8_e4m3"), ()),
    ("--model-id gpt2 --num-shard 2", (GPT2, TWO), ()),
]  # fmt: skip
CASES = [*(("vllm", *case) for case in VLLM), *(("tgi", *case) for case in TGI)]
NAMES = [f"{source}-{number}" for source, cases in (("vllm", VLLM), ("tgi", TGI)) for number in range(len(cases))]


def translated(source: str, command: str) -> str:
    translate = translate_vllm if source == "vllm" else translate_tgi
    return translate(command, OPTIONS, ENVIRONMENT)


@pytest.mark.parametrize(("source", "command", "lines", "comments"), CASES, ids=NAMES)
def test_nothing_is_lost_without_a_word(
    source: str, command: str, lines: tuple[str, ...], comments: tuple[str, ...]
) -> None:
    text = translated(source, command)
    keys = {line.partition("=")[0] for line in lines}
    expected = {line for line in ALWAYS[source] if line.partition("=")[0] not in keys} | {*lines}
    assert {line for line in text.splitlines() if line and not line.startswith("#")} == expected
    for comment in comments:
        assert re.search(rf"^# .*{re.escape(comment)}", text, re.MULTILINE), text
    assert "hf_secret" not in text


@pytest.mark.parametrize(
    ("others", "shown"),
    [
        ("huggingface-cli login --token hf_secret;", "huggingface-cli login --token ******"),
        ("curl -H 'Authorization: Bearer hf_secret' http://a;", "curl -H ****** http://a"),
        ("AWS_SECRET_ACCESS_KEY=hf_secret aws s3 ls;", "AWS_SECRET_ACCESS_KEY=****** aws s3 ls"),
        ("git clone https://me:hf_secret@a/b;", "git clone https://******@a/b"),
        ("srun --export=HF_TOKEN=hf_secret", "srun --export=HF_TOKEN=******: put"),
        ("echo hf_secret | docker login --password-stdin;", "echo ******; docker login --password-stdin"),
        ("OTEL_EXPORTER_OTLP_HEADERS=authorization=hf_secret", "OTEL_EXPORTER_OTLP_HEADERS='<the value of"),
        ("HTTPS_PROXY=http://me:hf_secret@proxy", "HTTPS_PROXY='<the value of HTTPS_PROXY>'"),
        ("docker run --label token=hf_secret vllm/vllm-openai", "--label token=******: options"),
    ],
)
def test_secrets_around_the_command_are_not_in_the_file(others: str, shown: str) -> None:
    text = translated("vllm", f"{others} vllm serve m")
    assert shown in text
    assert "hf_secret" not in text


@pytest.mark.parametrize("quantize", ["awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes", "bitsandbytes-nf4"])
def test_an_engine_takes_each_quantisation_that_is_written(quantize: str) -> None:
    text = translated("tgi", f"text-generation-launcher --quantize {quantize}")
    written = re.findall("^option.quantize=(.*)$", text, re.MULTILINE)
    taken = {method for backend in registry().backends.values() for method in backend.choices.get("quantize", ())}
    assert set(written) <= taken
    assert len(written) == 1


def on_echo(text: str) -> str:
    """The file for echo, which needs neither vLLM nor a model of the hub."""
    return (
        re.sub("^option.(rolling_batch|model_id|s3url)[=:].*\n", "", text, flags=re.MULTILINE)
        + "option.rolling_batch=echo\n"
    )


def with_something_new(models: dict[str, dict[str, str]]) -> list[str]:
    """The models of which the properties for echo have a line that those of no earlier one have."""
    seen: set[str] = set()
    chosen = []
    for name, files in models.items():
        lines = {line for line in on_echo(files["serving.properties"]).splitlines() if not line.startswith("#")}
        if not lines <= seen:
            chosen.append(name)
        seen |= lines
    return chosen


TRANSLATED = {name: {"serving.properties": translated(*case[:2])} for name, case in zip(NAMES, CASES, strict=True)}
# A handler's code needs no echo.
MODELS: dict[str, Files] = TRANSLATED | {name: files for name, files in CONFIGURATIONS.items() if name != "handler"}


def echoing(name: str) -> Files:
    files = MODELS[name]
    return files | {"serving.properties": on_echo(files["serving.properties"])}


@pytest.mark.long
@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("name", with_something_new(MODELS))
def test_check_agrees_with_serve(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lmi check` and `lmi serve` on echo have the same errors, or none."""
    directory = write(tmp_path / "m", echoing(name))
    checked, served = check(directory), serve(directory, monkeypatch, capsys)
    assert checked.errors == served.errors
    assert (served.status == 0) == (served.errors == []), served.text
    # An argument of vLLM's is unknown on echo: serve only warns then.
    assert (checked.status == 0) == (checked.errors == [] and "  unknown option " not in checked.text)


def together(one: Files, other: Files) -> Files | None:
    """The model with the files and properties of both, or None if one of them differs."""
    lines: dict[str, str] = {}
    for files in (one, other):
        for line in files["serving.properties"].splitlines():
            if line and not line.startswith("#") and lines.setdefault(line.partition("=")[0], line) != line:
                return None
    if any(one[file] != other[file] for file in one.keys() & other.keys() - {"serving.properties"}):
        return None
    return one | other | {"serving.properties": "".join(f"{line}\n" for line in lines.values())}


@pytest.mark.long
@pytest.mark.usefixtures("environ")
def test_what_check_accepts_is_served(tmp_path: Path) -> None:
    """As many of the models as possible by one server, because each takes seconds to start."""
    models: list[Files] = []
    for name in with_something_new(MODELS):
        files = echoing(name)
        if check(write(tmp_path / f"alone {name}", files)).errors:
            continue
        for number, model in enumerate(models):
            both = together(model, files)
            if both is not None and not check(write(tmp_path / f"{number} {name}", both)).errors:
                models[number] = both
                break
        else:
            models.append(files)
    assert len(models) < 20, "a server for each"
    for number, files in enumerate(models):
        directory = write(tmp_path / f"m{number}", files)
        server = Server(directory, files["serving.properties"])
        try:
            assert "lmi: error: " not in server.wait_ready().log
        finally:
            server.stop()
