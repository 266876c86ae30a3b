"""What `lmi ray serve` decides before Ray is asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from facts import says
from lmi_command import ended
from serving import ENVIRON, free_port

from lmi_handlers.ray.commands import serve
from lmi_handlers.ray.resources import Node, Resources, has_room


@pytest.mark.parametrize(
    ("num_cpus", "num_gpus", "replicas", "fits"),
    [
        (1.0, 0, 10, True),
        (1.0, 0, 11, False),
        (0.5, 2, 3, True),
        (0.5, 2, 4, False),
        (3.0, 1, 2, True),
        (3.0, 1, 3, False),
    ],
)
def test_an_update_starts_a_new_replica_first_where_there_is_room(
    num_cpus: float, num_gpus: int, replicas: int, fits: bool
) -> None:
    nodes = [Node(4.0, 3), Node(4.0, 5), Node(2.0, 0)]
    assert has_room(nodes, Resources(num_cpus, num_gpus), replicas) is fits


def test_a_ray_of_its_own_ends_with_the_command() -> None:
    result = CliRunner().invoke(serve, ["--model-dir", "m", "--detach"])
    assert result.exit_code != 0
    assert "--detach needs --address" in result.output


@pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported
@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (["--replicas", "0"], "replicas: greater equal 1"),
        (["--min-replicas", "3", "--max-replicas", "2"], "max_replicas=2 min_replicas=3"),
    ],
)
def test_a_mistake_is_one_line(given: list[str], cause: str) -> None:
    result = CliRunner().invoke(serve, ["--model-dir", "m", *given])
    assert result.exit_code != 0
    assert says(result.output, f"lmi: error: {cause}")


@pytest.mark.filterwarnings("ignore")  # Ray's own, when it is imported
def test_each_mistake_of_the_configuration_is_a_line(model_dir: Path) -> None:
    (model_dir / "serving.properties").write_text("option.rolling_batch=nonsense\noption.dtype=f9\nbatch_size=0\n")
    command = ("ray", "serve", "--model-dir", str(model_dir), "--port", str(free_port()))
    done = ended(*command, folder=model_dir, environ=ENVIRON)
    assert done.returncode == 1
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("lmi: error: ")]
    assert [line.split()[2] for line in errors[:3]] == ["option.dtype", "batch_size", "option.rolling_batch:"]
