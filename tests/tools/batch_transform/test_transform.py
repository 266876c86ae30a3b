"""`lmi transform`: jobs on a real server, on a container that is not ours, and from S3 to S3."""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from facts import says
from s3_server import S3Server
from serving import ENVIRON, Server, StartServer, free_port
from transform import Container, container, read_lines, transform, write_lines
from waiting import still_running, wait_until

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.batch_transform.endpoint import ServerClient, ServerLost
from lmi_handlers.tools.batch_transform.job import FileReport, TransformJob
from lmi_handlers.tools.batch_transform.settings import Choices, ExecutionParameters, settle
from lmi_handlers.tools.batch_transform.storage import find_inputs, open_folder
from lmi_handlers.tools.batch_transform.transform import Transform


@pytest.fixture
def foreign() -> Iterator[Container]:
    with container() as server:
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


def prompt(number: int, **fields: object) -> dict[str, object]:
    return {"id": number, "inputs": f"record {number}", "parameters": {"max_new_tokens": 20}, **fields}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bad(number: int) -> object:
    """A record that fails: not JSON, a wrong type, or one that the engine refuses."""
    return [b"{bad", {"inputs": 5}, {"inputs": "REFUSE@1"}][number % 3]


@pytest.mark.parametrize("strategy", ["MULTI_RECORD", "SingleRecord"])
def test_records_stay_in_order_and_errors_in_their_place(strategy: str, echo_server: Server, tmp_path: Path) -> None:
    records = [prompt(number) if number % 10 else bad(number // 10) for number in range(60)]
    source = write_lines(tmp_path / "records.jsonl", records)
    result = transform(
        source,
        tmp_path / "out",
        *("--url", echo_server.url, "--batch-strategy", strategy, "--max-records", "7"),
        *("--max-concurrent-transforms", "5"),
    )
    assert result.returncode == 0, result.stderr
    assert "60 records in" in result.stderr
    assert "6 of them failed" in result.stderr
    outputs = read_lines(tmp_path / "out" / "records.jsonl.out")
    assert [item.get("generated_text", "error" if "error" in item else None) for item in outputs] == [
        f"record {number}" if number % 10 else "error" for number in range(60)
    ]
    assert names_in(tmp_path / "out") == ["records.jsonl.out"]


def test_outputs_are_joined_with_their_records(echo_server: Server, tmp_path: Path) -> None:
    """The model gets no `id`, of which it would complain in a header."""
    records = [prompt(0), b"[1]", prompt(2), {"id": 3, "inputs": 5}, b"{bad"]
    source = write_lines(tmp_path / "records.jsonl", records)
    filters = ("--join-source", "Input", "--input-filter", "$['inputs','parameters']")
    result = transform(source, tmp_path / "out", "--url", echo_server.url, *filters)
    assert result.returncode == 0, result.stderr
    outputs = read_lines(tmp_path / "out" / "records.jsonl.out")
    assert outputs[0] == prompt(0, SageMakerOutput={"generated_text": "record 0"})
    assert outputs[1]["SageMakerInput"] == [1]
    assert "not an object" in str(outputs[1]["SageMakerOutput"])
    assert outputs[3]["id"] == 3
    assert "inputs" in str(outputs[3]["SageMakerOutput"])
    assert outputs[4]["SageMakerInput"] == "{bad"
    kept = ("--output-filter", "$['id','SageMakerOutput']")
    assert transform(source, tmp_path / "kept", "--url", echo_server.url, *filters, *kept).returncode == 0
    lines = read_lines(tmp_path / "kept" / "records.jsonl.out")
    assert lines[2] == {"id": 2, "SageMakerOutput": {"generated_text": "record 2"}}
    assert "SageMakerOutput" in lines[3]


def test_folder_of_files_is_transformed_file_by_file(echo_server: Server, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b/c.jsonl", ".hidden/d.jsonl"):
        write_lines(tmp_path / "in" / name, [prompt(number) for number in range(3)])
    (tmp_path / "in" / "b" / "empty.jsonl").touch()
    result = transform(tmp_path / "in", tmp_path / "out", "--url", echo_server.url)
    assert result.returncode == 0, result.stderr
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"a.jsonl.out", "b/c.jsonl.out", "b/empty.jsonl.out"}
    assert read_lines(tmp_path / "out" / "b" / "c.jsonl.out")[2] == {"generated_text": "record 2"}
    assert (tmp_path / "out" / "b" / "empty.jsonl.out").read_bytes() == b""


def test_file_that_fails_has_no_output_and_the_others_do(echo_server: Server, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [prompt(0), bad(0), *map(prompt, range(50))])
    write_lines(tmp_path / "in" / "b.jsonl", [prompt(1)])
    (tmp_path / "in" / "c.jsonl").write_bytes(b"x" * (2 << 20))
    limits = ("--errors", "fail", "--max-payload-in-mb", "1", "--max-records", "2")
    result = transform(tmp_path / "in", tmp_path / "out", "--url", echo_server.url, *limits)
    assert result.returncode == 1
    assert says(result.stderr, "a.jsonl: record failed {")
    assert says(result.stderr, "c.jsonl: record failed")
    assert names_in(tmp_path / "out") == ["b.jsonl.out"]
    compressed = tmp_path / "gz" / "d.jsonl.gz"
    compressed.parent.mkdir()
    compressed.write_bytes(gzip.compress(b'{"inputs": "abc"}\n' * 1000)[:-20])
    gzipped = ("--url", echo_server.url, "--compression-type", "Gzip")
    result = transform(compressed, tmp_path / "out2", *gzipped)
    assert (result.returncode, names_in(tmp_path / "out2")) == (1, [])
    assert says(result.stderr, "d.jsonl.gz: compressed cut")
    compressed.write_bytes(gzip.compress(b'{"inputs": "abc"}\n' * 3))
    assert transform(compressed, tmp_path / "out2", *gzipped).returncode == 0
    assert read_lines(tmp_path / "out2" / "d.jsonl.gz.out") == [{"generated_text": "abc"}] * 3


def test_bad_row_spoils_no_other_on_any_container(foreign: Container, tmp_path: Path) -> None:
    """This container fails a whole request for a bad row. Requests of no retries are fast."""
    (tmp_path / "rows.csv").write_text("".join(f"{n},{'bad' if n == 5 else 'x'},y\n" for n in range(8)))
    joined = ("--join-source", "Input", "--output-filter", "$[0,3]", "--invocations-max-retries", "0")
    result = transform(tmp_path / "rows.csv", tmp_path / "out", "--url", foreign.url, *joined)
    assert result.returncode == 0, result.stderr
    lines = (tmp_path / "out" / "rows.csv.out").read_text().splitlines()
    assert lines[:5] + lines[6:] == [f"{n},3" for n in range(8) if n != 5]
    assert lines[5] == '5,bad,y,"{""error"":""ValueError: bad"",""code"":500}"'
    assert len(foreign.bodies[0].splitlines()) == 8


def test_failed_requests_are_repeated(foreign: Container, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x00\xff" * 100)
    arguments = ("--url", f"{foreign.url}/invocations", "--content-type", "image/png")
    foreign.failures = [429]
    assert transform(tmp_path / "image", tmp_path / "out", *arguments).returncode == 0
    assert (tmp_path / "out" / "image.out").read_bytes() == b"<200>"
    assert foreign.bodies == [b"\x00\xff" * 100] * 2
    foreign.failures = [500, 503]
    result = transform(tmp_path / "image", tmp_path / "no", *arguments, "--invocations-max-retries", "1")
    assert (result.returncode, names_in(tmp_path / "no")) == (1, [])
    assert '{"error":"<html>not now</html>","code":503}' in result.stderr
    foreign.failures = [400]
    assert transform(tmp_path / "image", tmp_path / "no", *arguments).returncode == 1
    assert len(foreign.bodies) == 5  # a client's error is not repeated


def test_records_that_a_crash_cost_are_sent_again(foreign: Container, tmp_path: Path) -> None:
    """The job waits for the server to load. It takes no output of an earlier job for an input."""
    foreign.loading = 2
    write_lines(tmp_path / "records.jsonl", [1, 2, 3])
    for retries, first in ((1, {"echo": 1}), (0, {"error": "the engine has crashed", "code": 503})):
        foreign.bodies.clear()
        limits = ("--url", foreign.url, "--invocations-max-retries", str(retries))
        result = transform(tmp_path, tmp_path, *limits)
        assert result.returncode == 0, result.stderr
        assert read_lines(tmp_path / "records.jsonl.out") == [first, {"echo": 2}, {"echo": 3}]
        assert foreign.bodies == [b"1\n2\n3\n", b"1\n"][: 1 + retries]
        assert names_in(tmp_path) == ["records.jsonl", "records.jsonl.out"]
    assert foreign.loading < 0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_busy_server_ends_the_job(status: int, foreign: Container, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n" * 8)
    foreign.failures = [status] * 9
    retries = ("--invocations-max-retries", "0")
    result = transform(tmp_path / "rows.csv", tmp_path / "out", "--url", foreign.url, *retries)
    assert (result.returncode, names_in(tmp_path / "out"), len(foreign.bodies)) == (1, [], 1)
    assert f'lmi: error: {foreign.url}: {{"error":"<html>not now</html>","code":{status}}}' in result.stderr


def test_job_does_not_wait_for_a_record_when_the_server_is_gone(foreign: Container, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("hang\ngone\n")
    single = ("--batch-strategy", "SingleRecord", "--max-concurrent-transforms", "2", "--invocations-max-retries", "0")
    result = transform(tmp_path / "rows.csv", tmp_path / "out", "--url", foreign.url, *single)
    assert (result.returncode, names_in(tmp_path / "out")) == (1, [])
    assert not foreign.released.is_set()


def test_output_of_several_lines_is_one_line(foreign: Container, tmp_path: Path) -> None:
    """Also with a type that has parameters, and a record that is nested too deeply to be joined."""
    (tmp_path / "words").write_text("a\n")
    lines = ("--url", foreign.url, "--content-type", "text/plain", "--split-type", "Line")
    for text, output in ((b"one\ntwo\n", "one\ntwo"), (b'{"token":1}\n{"token":2}\n', None)):
        foreign.text = text
        assert transform(tmp_path / "words", tmp_path / "out", *lines).returncode == 0
        [line] = (tmp_path / "out" / "words.out").read_text().splitlines()
        assert json.loads(line) == output if output else "not one line" in json.loads(line)["error"]
    deep = b"[" * 100_000 + b"]" * 100_000
    source = write_lines(tmp_path / "deep", [deep, 2])
    joined = ("--url", foreign.url, "--content-type", "application/jsonlines", "--join-source", "Input")
    result = transform(source, tmp_path / "out", *joined)
    assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
    first, second = read_lines(tmp_path / "out" / "deep.out")
    assert first["SageMakerInput"] == deep.decode()
    assert "nested too deeply" in str(first["SageMakerOutput"])
    assert second == {"SageMakerInput": 2, "SageMakerOutput": {"echo": 2}}


def test_errors_of_lines_fail_a_file_that_is_not_lines(foreign: Container, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "records.jsonl", [1, 2])
    whole = ("--url", foreign.url, "--assemble-with", "None", "--errors", "fail", "--invocations-max-retries", "0")
    result = transform(source, tmp_path / "out", *whole)
    assert (result.returncode, names_in(tmp_path / "out")) == (1, [])
    assert "the engine has crashed" in result.stderr
    assert transform(source, tmp_path / "out", *whole).returncode == 0
    assert (tmp_path / "out" / "records.jsonl.out").read_bytes() == b'{"echo":1}{"echo":2}'


def test_what_a_server_wants_is_kept_within_the_limits() -> None:
    for several, payload, settled in ((0, 0, (1, 100)), (500, 6, (100, 1)), (4, 0, (4, 25)), (-1, 7, (1, 7))):
        parameters = ExecutionParameters(max_concurrent_transforms=several, max_payload_in_mb=payload)
        settings = settle(Choices(content_type="TEXT/csv; charset=utf-8", join_source="Input"), parameters, "x")
        assert (settings.max_concurrent, settings.max_payload >> 20) == settled
        assert (settings.lines, settings.several, settings.media_type) == (True, True, "text/csv")


def test_job_from_s3_to_s3(s3: S3Server, echo_server: Server) -> None:
    lines = "".join(json.dumps(prompt(number)) + "\n" for number in range(30)).encode()
    files = {
        "in/part-1.jsonl": lines,
        "in/part-2/x.jsonl": lines[: len(lines) // 2],
        "in/other": b"no",
        "in/part-2/": b"",
    }
    s3.put("transforms", files)
    environ = s3.environ | {"AWS_ENDPOINT_URL_S3": s3.client.meta.endpoint_url}
    arguments = ("--url", echo_server.url, "--content-type", "application/jsonlines")
    result = transform("s3://transforms/in/part", "s3://transforms/out", *arguments, environ=environ)
    assert result.returncode == 0, result.stderr
    found = s3.client.list_objects_v2(Bucket="transforms", Prefix="out")["Contents"]
    assert [item["Key"] for item in found] == ["out/part-1.jsonl.out", "out/part-2/x.jsonl.out"]
    whole = s3.client.get_object(Bucket="transforms", Key="out/part-1.jsonl.out")["Body"].read()
    assert whole == b"".join(b'{"generated_text": "record %d"}\n' % number for number in range(30))
    for source, target in (("s3://transforms/in/part", "s3://missing/out"), ("s3://missing/in", "s3://transforms/x")):
        result = transform(source, target, *arguments, environ=environ)
        assert result.returncode == 1
        assert "s3://missing/" in result.stderr
        assert "the bucket does not exist" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--errors", "in-place", "--split-type", "None"), "--errors in-place --split-type"),
        (("--input-filter", "$..a"), "--input-filter $..a path"),
        (("--join-source", "Input", "--content-type", "text/plain"), "JSON CSV text/plain"),
        (("--join-source", "Input", "--assemble-with", "None"), "--split-type Line --assemble-with"),
        (("--max-payload-in-mb", "50", "--max-concurrent-transforms", "3"), "exceed 100"),
        (("--accept", "é€"), "--accept printable ASCII"),
        (("--url", "localhost:80"), "--url URL localhost:80"),
        (("--url", "http://127.0.0.1:1"), "http://127.0.0.1:1 Connection refused"),
        (("--model-dir", "/nowhere/at/all", "--url", "http://x"), "exclude"),
        (("--model-dir", "/nowhere/at/all"), "/nowhere/at/all directory"),
    ],
    ids=str,
)
def test_mistakes_are_told_before_anything_is_sent(arguments: tuple[str, ...], cause: str, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "records.jsonl", [prompt(0)])
    extra = () if {"--url", "--model-dir"} & set(arguments) else ("--url", f"http://127.0.0.1:{free_port()}")
    result = transform(source, tmp_path / "out", *arguments, *extra)
    assert result.returncode != 0
    assert says(result.stderr, cause)
    assert "Traceback" not in result.stderr


def test_job_whose_server_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [prompt(0)] * 20)
    write_lines(tmp_path / "in" / "b.jsonl", [prompt(0)])
    settings = settle(Choices(max_records=2), ExecutionParameters(), "a.jsonl")
    folder = open_folder(str(tmp_path / "out"))
    reports: list[FileReport] = []
    job = TransformJob(Transform(ServerClient("http://127.0.0.1:1"), settings), settings, folder, reports.append)
    with pytest.raises(ServerLost, match="Connection refused"):
        job.run(find_inputs(str(tmp_path / "in")))
    assert reports == []
    assert names_in(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["/etc/passwd.out", "a//b", "a/../../b", "./a", "a/", "", "a\0b"], ids=repr)
def test_name_from_s3_leads_out_of_no_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be a file"):
        open_folder(str(tmp_path)).new_file(name)


def test_missing_input_is_told(tmp_path: Path) -> None:
    assert "does not exist" in transform(tmp_path / "none", tmp_path / "out").stderr
    (tmp_path / "empty").mkdir()
    assert "has no files" in transform(tmp_path / "empty", tmp_path / "out").stderr


@pytest.mark.parametrize(
    ("ended_by", "status"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_job_stops_its_own_server(ended_by: signal.Signals, status: int, tmp_path: Path) -> None:
    """However a signal ends it. If it can be handled, it leaves no part of an output."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "serving.properties").write_text("option.rolling_batch=echo\noption.echo_tokens_per_second=1\n")
    source = write_lines(tmp_path / "records.jsonl", [prompt(0), {"inputs": "a" * 100}])
    command = [
        sys.executable,
        "-m",
        "lmi_handlers.commands.cli",
        "transform",
        "--input",
        str(source),
        "--batch-strategy",
    ]
    command += ["SingleRecord", "--output", str(tmp_path / "out"), "--model-dir", str(model)]
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(command, stderr=log, env=ENVIRON)
    wait_until(lambda: "engine ready" in (tmp_path / "log").read_text(), timeout=60)
    time.sleep(1)
    children = psutil.Process(job.pid).children(recursive=True)
    assert children
    job.send_signal(ended_by)
    assert job.wait(60) == status
    assert still_running(children) == []
    if ended_by is not signal.SIGKILL:
        assert names_in(tmp_path / "out") == []


@pytest.mark.long
def test_memory_does_not_grow_with_the_file(foreign: Container, tmp_path: Path) -> None:
    """300 MB of rows of 100 kB, and one row of 60 MB that no request may have."""
    with (tmp_path / "rows.csv").open("wb") as file:
        for _ in range(300):
            file.write((b"x," * 50_000 + b"\n") * 10)
        file.write(b"y" * (60 << 20) + b"\n1,2\n")
    program = (  # not `ru_maxrss`, which begins with that of the process that has forked this one
        "import atexit, re; from lmi_handlers.commands.cli import main; "
        "atexit.register(lambda: print(*re.findall(r'VmHWM:\\s*(\\d+) kB', open('/proc/self/status').read()))); main()"
    )
    command = [sys.executable, "-c", program, "transform", "--input", str(tmp_path / "rows.csv")]
    command += ["--output", str(tmp_path / "out"), "--url", foreign.url]
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRON, timeout=300, check=True)
    assert "3002 records in" in result.stderr
    assert "1 of them failed" in result.stderr
    lines = (tmp_path / "out" / "rows.csv.out").read_text().splitlines()
    assert lines[:3000] == ["50001"] * 3000
    assert lines[3001] == "2"
    assert int(result.stdout.split()[-1]) < 250 << 10  # kB


@pytest.mark.long
def test_job_is_as_fast_as_32_clients(start_server: StartServer, tmp_path: Path) -> None:
    """1,000 records, 1 % of them bad, on an engine of 32 places in which a token takes its time."""
    paced = "option.rolling_batch=echo\noption.echo_tokens_per_second=100\noption.max_rolling_batch_size=32\n"
    server = start_server(paced + "option.echo_faults=true\n")
    records = [
        bad(number) if number % 100 == 50 else prompt(number, inputs="x" * (20 + number * 7 % 60), parameters={})
        for number in range(1000)
    ]
    bodies = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in records]
    source = write_lines(tmp_path / "records.jsonl", records)

    def ask(body: bytes) -> bytes:
        session = getattr(local, "session", None) or requests.Session()
        local.session = session
        answer = session.post(
            f"{server.url}/invocations", body, headers={"Content-Type": "application/json"}, timeout=60
        )
        return bytes(answer.content)

    local = threading.local()
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, bodies))
    clients = time.monotonic() - began
    for strategy, more in (
        ("MultiRecord", ()),
        ("SingleRecord", ("--max-concurrent-transforms", "32", "--max-payload-in-mb", "3")),
    ):
        result = transform(source, tmp_path / strategy, "--url", server.url, "--batch-strategy", strategy, *more)
        assert result.returncode == 0, result.stderr
        outputs = (tmp_path / strategy / "records.jsonl.out").read_bytes().splitlines()
        assert [json.loads(line) for line in outputs] == [json.loads(answer) for answer in answers]
        assert sum(b"error" in line for line in outputs) == 10
        seconds = float(re.findall(r"in ([\d.]+) s$", result.stderr, re.M)[-1])
        print(f"{strategy}: {seconds:.1f} s, 32 clients: {clients:.1f} s, ratio {clients / seconds:.2f}")
        assert clients / seconds > 0.7  # above 1 even on a busy machine
