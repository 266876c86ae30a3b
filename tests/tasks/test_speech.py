"""Speech recognition on a tiny Whisper model, beside the library's own results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from facts import raises, says
from task_handlers import TaskLoader, answers, as_json, ask, encoded, of_type, value_of, wav
from tiny_whisper import RATE, sound

from lmi_handlers.core.errors import ClientDisconnected, ConfigError
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.tasks.handler import TaskHandler
from lmi_handlers.tasks.task import MAX_ITEMS
from lmi_handlers.tasks.whisper import PIECE_SECONDS, check_generation_config, split

SHORT = sound(3)
LONG = sound(70, seed=4)
WHISPER = ("WhisperForConditionalGeneration", "automatic-speech-recognition")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TaskHandler, Path]]:
    loader = TaskLoader(tmp_path_factory.mktemp("speech"))
    yield loader(*WHISPER)
    loader.close()


@pytest.fixture
def handler(loaded: tuple[TaskHandler, Path]) -> TaskHandler:
    return loaded[0]


def body(samples: np.ndarray[Any, Any], **parameters: object) -> dict[str, Any]:
    return {"inputs": encoded(wav(samples.tobytes())), "parameters": parameters}


def test_the_text_is_the_librarys(loaded: tuple[TaskHandler, Path]) -> None:
    handler, path = loaded
    (answer,) = answers(handler, of_type("audio/wav", wav(SHORT.tobytes())))
    pipeline: Any = transformers.pipeline("automatic-speech-recognition", model=str(path), device="cpu")
    options = {"task": "transcribe", "num_beams": 1, "max_length": 40}
    assert value_of(answer) == pipeline(SHORT.astype(np.float32) / 2**15, generate_kwargs=options)


def test_the_segments_are_the_librarys(loaded: tuple[TaskHandler, Path]) -> None:
    handler, path = loaded
    (found,) = ask(handler, body(SHORT, details=True, language="de", task="translate"))
    auto: Any = transformers.WhisperForConditionalGeneration
    extract: Any = transformers.WhisperFeatureExtractor.from_pretrained(path)
    features = extract(SHORT.astype(np.float32) / 2**15, sampling_rate=RATE, return_tensors="pt")["input_features"]
    model = auto.from_pretrained(path)
    options = {"language": "de", "task": "translate", "return_timestamps": True, "output_scores": True}
    output = model.generate(features, **options, return_dict_in_generate=True, force_unique_generate_call=True)
    tokens = output.sequences[0]
    text = [int(token) for token in tokens if token < 256]
    assert [token for segment in found["segments"] for token in segment["tokens"]] == text
    times = [(int(token) - 267) * 0.02 for token in tokens if token > 266]
    assert found["segments"][0]["start"] == pytest.approx(times[0])
    logprobs = torch.stack(output.scores)[:, 0].log_softmax(-1)
    generated = tokens[-len(output.scores) :]
    mean = logprobs.gather(1, generated[:, None]).mean().item()
    assert found["segments"][0]["avg_logprob"] == pytest.approx(mean, rel=1e-3)
    assert found["language"] == "german"
    assert found["duration"] == 3.0


def test_long_sounds_are_cut_where_it_is_quiet() -> None:
    samples = np.full(75 * RATE, 0.5, np.float32)
    samples[29 * RATE : 29 * RATE + RATE // 5] = 0
    pieces = list(split(samples, RATE))
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), samples)
    assert all(0 < len(piece) <= PIECE_SECONDS * RATE for _, piece in pieces)
    assert 29 < pieces[1][0] / RATE < 29.2
    assert [start for start, _ in pieces[1:]] == [start + len(piece) for start, piece in pieces[:-1]]


def test_timestamps_go_on_over_pieces(handler: TaskHandler) -> None:
    (found,) = ask(handler, body(LONG, return_timestamps=True, language="fr"))
    places = [place for chunk in found["chunks"] for place in chunk["timestamp"]]
    assert all(before <= after for before, after in pairwise(places))
    assert places[-1] <= 70
    parts = [(start, start + len(piece)) for start, piece in split(LONG.astype(np.float32) / 2**15, RATE)]
    assert len(parts) == 3
    alone = [
        ask(handler, body(piece, return_timestamps=True, language="fr"))[0]
        for piece in (LONG[start:end] for start, end in parts)
    ]
    assert found["text"] == "".join(each["text"] for each in alone)
    shifted = [
        [place + start / RATE for place in chunk["timestamp"]]
        for each, (start, _) in zip(alone, parts, strict=True)
        for chunk in each["chunks"]
    ]
    np.testing.assert_allclose([chunk["timestamp"] for chunk in found["chunks"]], shifted, atol=0.02)


def test_words_have_times(handler: TaskHandler) -> None:
    (found,) = ask(handler, body(SHORT, return_timestamps="word"))
    assert "".join(chunk["text"] for chunk in found["chunks"]) == found["text"]
    assert all(0 <= start <= end <= 3 for start, end in (chunk["timestamp"] for chunk in found["chunks"]))


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # the library's own
def test_times_of_words_go_on_over_pieces(handler: TaskHandler) -> None:
    (found,) = ask(handler, body(LONG, return_timestamps="word", language="fr"))
    begins = [chunk["timestamp"][0] for chunk in found["chunks"]]
    assert begins == sorted(begins)
    pieces = [(start / RATE, (start + len(piece)) / RATE) for start, piece in split(LONG.astype(np.float32), RATE)]
    assert len(pieces) == 3
    assert all(any(start <= begin <= end for begin in begins) for start, end in pieces)


def test_requests_in_a_batch_are_answered_as_alone(handler: TaskHandler) -> None:
    bodies = [body(SHORT), body(LONG), body(sound(5, seed=9)), {"inputs": "#"}, body(SHORT, stream=True)]
    alone = [ask(handler, each)[0] for each in bodies[:3]]
    together = answers(handler, *map(as_json, bodies))
    assert [value_of(answer) for answer in together[:3]] == alone
    assert says(together[3], "inputs: not base64")
    assert isinstance(together[4], Output)
    assert [json.loads(line) for line in together[4].data().splitlines()] == [alone[0]] * 2


def test_a_stream_has_a_line_per_piece(handler: TaskHandler) -> None:
    (whole,) = ask(handler, body(LONG))
    (answer,) = answers(handler, as_json(body(LONG, stream=True)))
    assert isinstance(answer, Output)
    *pieces, last = [json.loads(answer.format(item)) for item in answer.stream_content]
    assert len(pieces) == 3
    assert "".join(piece["text"] for piece in pieces) == last["text"] == whole["text"]


def test_a_prompt_changes_the_text_and_is_not_part_of_it(handler: TaskHandler) -> None:
    plain, prompted, long = ask(handler, body(SHORT), body(SHORT, prompt="quilter"), body(SHORT, prompt="word " * 99))
    assert prompted != plain
    assert "quilter" not in prompted["text"]
    assert "word" not in long["text"]


def test_nobody_waits_any_more(handler: TaskHandler) -> None:
    inputs = Input.of_batch([as_json(body(LONG))])
    asked = iter([False] * 9)
    inputs.is_aborted = lambda: next(asked, True)
    found = handler(inputs)
    assert found is not None
    assert isinstance(found[0], ClientDisconnected)


@pytest.mark.parametrize(
    ("parameters", "facts"),
    [
        ({"language": "klingon"}, "parameters.language: klingon not language"),
        ({"language": ""}, "parameters.language: 1"),
        ({"task": "sing"}, "parameters.task: sing"),
        ({"temperature": 2}, "parameters.temperature: <= 1.0"),
        ({"prompt": "a <|en|>"}, "parameters.prompt: special tokens"),
        ({"max_new_tokens": 0}, "parameters.max_new_tokens: >= 1"),
        ({"generate_kwargs": {"num_beams": 5}}, "parameters.generate_kwargs: num_beams"),
        ({"prompt": "x" * 10_001}, "parameters.prompt: 10000"),
        ({"return_timestamps": "char"}, "parameters.return_timestamps: char"),
    ],
)
def test_wrong_parameters(handler: TaskHandler, parameters: dict[str, Any], facts: str) -> None:
    (error,) = ask(handler, body(SHORT, **parameters))
    assert says(error, facts)


def test_files_are_counted_before_they_are_decoded(handler: TaskHandler) -> None:
    (error,) = ask(handler, {"inputs": ["#"] * (MAX_ITEMS + 1)})
    assert says(error, f"inputs: {MAX_ITEMS} 257")


def test_the_lowest_temperatures_are_greedy(handler: TaskHandler) -> None:
    greedy, cold = ask(handler, body(SHORT), body(SHORT, temperature=1e-40))
    assert cold == greedy


@pytest.mark.parametrize("heads", [None, [[1, 0], [2, 0]]])
def test_an_english_model_without_word_times(tmp_path: Path, heads: list[list[int]] | None) -> None:
    """Many distilled models have heads of the larger model's decoder."""
    loader = TaskLoader(tmp_path)
    handler, _ = loader(*WHISPER, is_multilingual=False, lang_to_id=None, task_to_id=None, alignment_heads=heads)
    found = ask(
        handler,
        *(
            body(SHORT, **each)
            for each in (
                {},
                {"language": "English"},
                {"language": "de"},
                {"task": "translate"},
                {"return_timestamps": "word"},
            )
        ),
    )
    loader.close()
    assert found[0] == found[1]
    assert says(found[2], "parameters.language: English")
    assert says(found[3], "parameters.task: English")
    assert says(found[4], "parameters.return_timestamps: alignment_heads")


@pytest.mark.parametrize(
    "changes",
    [
        {"no_timestamps_token_id": None},
        {"no_timestamps_token_id": 10**6},
        {"lang_to_id": {"<|de|>": -1}},
        {"lang_to_id": ["<|de|>"]},
        {"task_to_id": {"transcribe": "<|transcribe|>"}},
        {"alignment_heads": [[0]]},
    ],
)
def test_a_broken_generation_config_is_refused_when_the_model_is_loaded(changes: dict[str, Any]) -> None:
    fields = {
        "decoder_start_token_id": 1,
        "eos_token_id": 0,
        "no_timestamps_token_id": 4,
        "is_multilingual": True,
        "lang_to_id": {"<|de|>": 2},
        "task_to_id": {"transcribe": 3},
        "alignment_heads": [[1, 0]],
    }
    generation: Any = transformers.GenerationConfig
    config = transformers.WhisperConfig(vocab_size=5, decoder_layers=2, decoder_attention_heads=1)
    check_generation_config(SimpleNamespace(config=config, generation_config=generation(**fields)))
    broken = generation(**(fields | changes))
    with raises(ConfigError, next(iter(changes))):
        check_generation_config(SimpleNamespace(config=config, generation_config=broken))
