"""What a model takes, and which instance types have room for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session
from facts import says, tell
from lmi_command import lmi

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.tools.deploy.instances import instance_types, propose
from lmi_handlers.tools.deploy.model_size import ModelSize, model_size

GIB = 2**30
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28_672,
}
MIXTRAL_8X7B = LLAMA_8B | {"num_local_experts": 8, "vocab_size": 32_000, "max_position_embeddings": 32_768}
GPT2 = {
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50_257,
    "tie_word_embeddings": True,
}


def sized(config: dict[str, Any], tmp_path: Path, **options: Any) -> ModelSize:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    size = model_size(None, file, ServingProperties(**options), max_model_len=None, batch=None)
    assert size is not None
    return size


@pytest.mark.parametrize(
    ("config", "billions"), [(LLAMA_8B, 8.03), (LLAMA_70B, 70.6), (MIXTRAL_8X7B, 46.7), (GPT2, 0.124)]
)
def test_parameters_are_as_published(config: dict[str, Any], billions: float, tmp_path: Path) -> None:
    """16 bits each. The numbers are those of the model cards."""
    assert sized(config, tmp_path).weights == pytest.approx(2e9 * billions, rel=0.01)


def test_only_the_experts_of_gpt_oss_have_4_bits(tmp_path: Path) -> None:
    """The files of gpt-oss-20b have 13.8 GB, with 4.25 bits per weight of the experts."""
    shape = {"hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "vocab_size": 201_088}
    layers = {"num_hidden_layers": 24, "num_local_experts": 32, "num_attention_heads": 64, "num_key_value_heads": 8}
    config = shape | layers | {"quantization_config": {"quant_method": "mxfp4"}}
    assert sized(config, tmp_path).weights == pytest.approx(13.8e9, rel=0.05)


@pytest.mark.parametrize(
    ("options", "stored", "share"),
    [
        ({}, {}, 1),
        ({"quantize": "fp8"}, {}, 0.5),
        ({"dtype": "fp32"}, {}, 2),
        ({}, {"quantization_config": {"quant_method": "awq", "bits": 4}}, 0.25),
        ({"quantize": "awq"}, {"quantization_config": {"quant_method": "gptq"}}, 0.25),
        ({}, {"quantization_config": {"quant_method": "fp8"}}, 0.5),
        ({"quantize": "bitsandbytes4"}, {}, 0.25),
        ({"quantize": "bitsandbytes8"}, {}, 0.5),
        ({}, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, 0.25),
        ({}, {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, 0.5),
    ],
)
def test_weights_in_the_type_that_they_are_loaded_in(
    options: dict[str, str], stored: dict[str, Any], share: float, tmp_path: Path
) -> None:
    whole = sized(LLAMA_8B, tmp_path).weights
    assert sized(LLAMA_8B | stored, tmp_path, **options).weights == pytest.approx(share * whole, rel=0.001)


def test_the_cache_of_the_requests_that_are_asked_for(tmp_path: Path) -> None:
    """Llama 3 8B takes 128 KiB per token: 2 * 32 layers * 8 heads * 128 * 2 bytes."""
    token = 128 * 1024
    assert sized(LLAMA_8B, tmp_path).kv_cache == 131_072 * token
    assert sized(LLAMA_8B | {"max_position_embeddings": 8192}, tmp_path).kv_cache == 8 * 4096 * token
    asked = {"max_model_len": 2048, "max_rolling_batch_size": 64}
    assert sized(LLAMA_8B, tmp_path, **asked).kv_cache == 64 * 2048 * token
    assert sized(LLAMA_8B, tmp_path, **asked, kv_cache_dtype="fp8").kv_cache == 64 * 2048 * token / 2
    latent = LLAMA_8B | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 4096}
    assert sized(latent, tmp_path).kv_cache == 8 * 4096 * 32 * 576 * 2
    assert sized(latent, tmp_path).kv_heads == 1  # no GPU has only a part of it
    falcon = {key: value for key, value in LLAMA_8B.items() if key != "num_key_value_heads"}
    assert sized(falcon | {"multi_query": True}, tmp_path).kv_heads == 1
    assert sized(falcon | {"new_decoder_architecture": True, "num_kv_heads": 4}, tmp_path).kv_heads == 4


def test_files_count_as_they_are(tmp_path: Path) -> None:
    """Only the best format of the weights is loaded."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    for name in ("a.safetensors", "b.safetensors", "pytorch_model.bin"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(GIB)  # sparse
    size = model_size(tmp_path, tmp_path / "config.json", ServingProperties(), max_model_len=None, batch=None)
    assert size is not None
    assert size.weights == 2 * GIB


def types_for(
    config: dict[str, Any], tmp_path: Path, *, cpu_only: bool = False, **options: Any
) -> list[tuple[str, int]]:
    properties = ServingProperties(**options)
    found = propose(
        sized(config, tmp_path, **options),
        instance_types(),
        degree=properties.tensor_parallel_degree,
        utilization=properties.gpu_memory_utilization,
        cpu_only=cpu_only,
    )
    return [(proposal.instance.type, proposal.tensor_parallel_degree) for proposal in found]


def test_the_smallest_comes_first_and_the_model_is_split_as_little_as_possible(tmp_path: Path) -> None:
    short: dict[str, Any] = {"max_model_len": 4096, "max_rolling_batch_size": 4}
    assert types_for(LLAMA_8B, tmp_path, **short)[:3] == [
        ("ml.g5.xlarge", 1),
        ("ml.g6.xlarge", 1),
        ("ml.g6e.xlarge", 1),
    ]
    assert types_for(LLAMA_70B, tmp_path)[0] == ("ml.p4d.24xlarge", 8)
    assert types_for(LLAMA_70B, tmp_path, quantize="awq")[0] == ("ml.g5.12xlarge", 4)
    assert types_for(LLAMA_8B, tmp_path, tensor_parallel_degree=4, **short)[0] == ("ml.g5.12xlarge", 4)
    assert ("ml.g4dn.12xlarge", 4) not in types_for(LLAMA_8B, tmp_path, **short)  # no bfloat16
    assert types_for(LLAMA_8B | {"torch_dtype": "float16"}, tmp_path, **short)[0] == ("ml.g5.xlarge", 1)
    assert types_for(LLAMA_70B | {"num_hidden_layers": 4000}, tmp_path) == []


def test_instances_without_gpus_are_for_small_models(tmp_path: Path) -> None:
    assert types_for(GPT2, tmp_path)[-1] == ("ml.c7i.xlarge", 0)
    assert all(degree for _, degree in types_for(LLAMA_8B, tmp_path))
    assert types_for(LLAMA_8B, tmp_path, max_model_len=4096, cpu_only=True)[0] == ("ml.r7i.xlarge", 0)


def test_every_instance_type_is_one_of_sagemakers() -> None:
    shape: Any = get_session().get_service_model("sagemaker").shape_for("ProductionVariantInstanceType")
    table = instance_types()
    assert {item.type for item in table} <= {*shape.enum}
    assert len({item.type for item in table}) == len(table)
    assert all((item.gpus > 0) == (item.gpu_memory > 0) == (item.compute_capability > 0) for item in table)


def test_the_command_says_why_and_deploy_takes_the_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    (tmp_path / "serving.properties").write_text("option.max_model_len=8192\n")
    result = lmi("instances", "--model-dir", str(tmp_path), "--concurrency", "2")
    assert result.exit_code == 0, result.output
    assert tell(
        result.stdout.splitlines()[:3],
        [
            "15.0 GiB 8.0 config.json 16",
            "KV 2.0 GiB 2 8192 128 KiB",
            "ml.g5.xlarge: tensor_parallel_degree=1 15.0 GiB 2.0 KV 1.5 = 18.5 20.1 90% A10G 24",
        ],
    )
    assert result.stdout.endswith(
        "for the first, add to serving.properties:\n  option.max_rolling_batch_size=2\n  option.tensor_parallel_degree=1\n"
    )
    image = ("--image", "1.dkr.ecr.us-east-1.amazonaws.com/x", "--role", "arn:aws:iam::123456789012:role/x")
    here = ("--model-dir", str(tmp_path), "--upload-to", "s3://bucket/x", "--concurrency", "8")
    result = lmi("deploy", "--name", "m", *image, *here, "--dry-run")
    variant = next(call for call in json.loads(result.stdout) if call["operation"] == "create_endpoint_config")
    assert variant["parameters"]["ProductionVariants"][0]["InstanceType"] == "ml.g6e.xlarge"
    assert "KV cache 8.0 GiB: 8 requests of 8192 tokens" in result.stderr
    assert environment(result.stdout) == {"OPTION_MAX_ROLLING_BATCH_SIZE": "8", "OPTION_TENSOR_PARALLEL_DEGREE": "1"}
    given = ("--instance-type", "ml.g5.12xlarge", "--env", "MAX_BATCH_SIZE=4", "--max-model-len", "4096")
    result = lmi("deploy", "--name", "m", *image, *here, *given, "--dry-run")
    assert environment(result.stdout) == {"MAX_BATCH_SIZE": "4"}  # serving.properties has the length
    split = ("--env", "SM_VLLM_TENSOR_PARALLEL_SIZE=4")
    result = lmi("deploy", "--name", "m", *image, *here, *split, "--dry-run")
    assert "OPTION_TENSOR_PARALLEL_DEGREE" not in environment(result.stdout)
    component = ("--component", "c", "--instance-type", "ml.g5.12xlarge")
    result = lmi("deploy", "--name", "m", *image, *here, *component, "--dry-run")
    made = next(call for call in json.loads(result.stdout) if call["operation"] == "create_inference_component")
    needs = made["parameters"]["Specification"]["ComputeResourceRequirements"]
    assert needs["NumberOfAcceleratorDevicesRequired"] == 2
    assert environment(result.stdout)["OPTION_TENSOR_PARALLEL_DEGREE"] == "2"
    result = lmi("deploy", "--name", "m", *image, *here, "--component", "c", "--existing-endpoint", "--dry-run")
    assert says(result.stderr, "no GPU --accelerators")
    assert "NumberOfAcceleratorDevicesRequired" not in result.stdout


def environment(printed: str) -> dict[str, str]:
    """The variables of the model in the calls of a dry run."""
    create_model = next(call for call in json.loads(printed) if call["operation"] == "create_model")
    variables: dict[str, str] = create_model["parameters"]["PrimaryContainer"]["Environment"]
    return variables


def test_a_model_that_is_elsewhere_has_no_size(tmp_path: Path) -> None:
    (tmp_path / "serving.properties").write_text("option.model_id=org/model-that-was-never-downloaded\n")
    result = lmi("instances", "--model-dir", str(tmp_path))
    assert (result.exit_code, says(result.stderr, "model's size")) == (1, True)
    (tmp_path / "serving.properties").write_text("")
    (tmp_path / "model.py").write_text("def handle(inputs):\n    return None\n")
    assert "or its own code loads it" in lmi("instances", "--model-dir", str(tmp_path)).stderr
    (tmp_path / "model.py").unlink()
    (tmp_path / "config.json").write_text("[]")
    assert "must hold a JSON object" in lmi("instances", "--model-dir", str(tmp_path)).stderr
