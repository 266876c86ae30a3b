"""Bad requests to tasks fail with the name of the field, and nobody else in their batch notices."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from facts import says, tell
from PIL import Image
from task_handlers import RATE, TaskLoader, answers, as_json, ask, encoded, of_type, value_of, wav

from backends.sounds import read_wav
from lmi_handlers.config.tasks import TASKS, task_of
from lmi_handlers.core.errors import InvalidRequest, LMIError
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.tasks import text
from lmi_handlers.tasks.body import _decode
from lmi_handlers.tasks.lengths import MAX_CHARACTERS
from lmi_handlers.tasks.media import MAX_SECONDS
from lmi_handlers.tasks.task import MAX_ITEMS
from lmi_handlers.tasks.text_to_text import MAX_BEAMS

CLASSIFIER = ("BertForSequenceClassification", "text-classification")
TOKENS = ("BertForTokenClassification", "token-classification")
ZERO_SHOT = ("DistilBertForSequenceClassification", "zero-shot-classification")
MASKS = ("BertForMaskedLM", "fill-mask")
QUESTIONS = ("BertForQuestionAnswering", "question-answering")
GENERATES = ("BartForConditionalGeneration", "text2text-generation")
SIMILAR = ("BertModel", "sentence-similarity")
FEATURES = ("BertModel", "feature-extraction")
IMAGES = ("ViTForImageClassification", "image-classification")
SOUNDS = ("Wav2Vec2ForSequenceClassification", "audio-classification")

GOOD: dict[tuple[str, str], Any] = {
    CLASSIFIER: {"inputs": "a cat"},
    TOKENS: {"inputs": "a cat"},
    ZERO_SHOT: {"inputs": "a cat", "parameters": {"candidate_labels": ["cat"]}},
    MASKS: {"inputs": "a [MASK]"},
    QUESTIONS: {"inputs": {"question": "who ?", "context": "a cat"}},
    GENERATES: {"inputs": "a cat", "parameters": {"max_new_tokens": 2}},
    SIMILAR: {"inputs": {"source_sentence": "a", "sentences": ["a"]}},
    FEATURES: {"inputs": "a cat"},
}
LONG = "cat " * 100
LABELS = {"candidate_labels": ["cat"]}


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskLoader]:
    loader = TaskLoader(tmp_path_factory.mktemp("tasks"))
    yield loader
    loader.close()


@pytest.mark.parametrize(
    ("model", "body", "error"),
    [
        (CLASSIFIER, {"inputs": 3}, "inputs: text pair"),
        (CLASSIFIER, {"inputs": {"text": "a", "more": "b"}}, "inputs: text pair"),
        (CLASSIFIER, {"inputs": []}, "inputs: empty"),
        (CLASSIFIER, {"inputs": "a", "inputz": 1}, "inputz: not field"),
        (CLASSIFIER, {"inputs": ["a"] * (MAX_ITEMS + 1)}, f"inputs: {MAX_ITEMS} 257"),
        (CLASSIFIER, {"inputs": "a" * (MAX_CHARACTERS + 1)}, f"inputs: {MAX_CHARACTERS} characters"),
        (CLASSIFIER, {"inputs": LONG}, "inputs: 102 64"),
        (CLASSIFIER, {"inputs": {"text": "a", "text_pair": LONG}}, "inputs: text 104"),
        (CLASSIFIER, {"inputs": "a", "parameters": []}, "parameters: object array"),
        (
            CLASSIFIER,
            {"inputs": "a", "parameters": {"top_p": 1}},
            "parameters.top_p: not parameter known:",
        ),
        (
            CLASSIFIER,
            {"inputs": "a", "parameters": {"top_k": "1"}},
            "parameters.top_k: int null str",
        ),
        (CLASSIFIER, {"inputs": "a", "parameters": {"top_k": 0}}, "parameters.top_k: >= 1"),
        (
            CLASSIFIER,
            {"inputs": "a", "parameters": {"function_to_apply": "eval"}},
            "parameters.function_to_apply: Invalid",
        ),
        *(
            (
                CLASSIFIER,
                {"inputs": LONG, "parameters": {"truncation": True, "max_length": length}},
                "parameters.max_length: 3 64",
            )
            for length in (1, 2, 65)
        ),
        (TOKENS, {"inputs": {"a": "b"}}, "inputs: text list texts"),
        (TOKENS, {"inputs": "a", "parameters": {"stride": 3}}, "parameters.stride: aggregation_strategy"),
        (
            TOKENS,
            {"inputs": "a", "parameters": {"stride": 40, "aggregation_strategy": "simple"}},
            "parameters.stride: 31",
        ),
        (
            TOKENS,
            {"inputs": "a", "parameters": {"offset_mapping": []}},
            "parameters.offset_mapping: not parameter",
        ),
        (ZERO_SHOT, {"inputs": "a"}, "parameters: required candidate_labels"),
        (
            ZERO_SHOT,
            {"inputs": "a", "parameters": {"candidate_labels": " , "}},
            "parameters.candidate_labels: 1",
        ),
        (
            ZERO_SHOT,
            {"inputs": "a", "parameters": {"candidate_labels": [str(number) for number in range(text.MAX_LABELS + 1)]}},
            "parameters.candidate_labels: 1 100 101",
        ),
        (
            ZERO_SHOT,
            {"inputs": ["a"] * 100, "parameters": {"candidate_labels": "a,b,c,d,e,f,g,h,i,j,k"}},
            "inputs: 100 11 1100 1000",
        ),
        (
            ZERO_SHOT,
            {"inputs": "a", "parameters": {"candidate_labels": [LONG]}},
            "parameters.candidate_labels: 100 61",
        ),
        (
            ZERO_SHOT,
            {"inputs": "a" * 20_000, "parameters": {"candidate_labels": ["cat"] * 100}},
            f"inputs: {MAX_CHARACTERS} characters",
        ),
        *(
            (
                ZERO_SHOT,
                {"inputs": "a", "parameters": LABELS | {"hypothesis_template": template}},
                "parameters.hypothesis_template: {} once",
            )
            for template in ("none", "{0.__class__}", "{:>1000000000}", "{} and {}", "{}}")
        ),
        (MASKS, {"inputs": "a cat"}, "inputs: 1 32 [MASK]"),
        (MASKS, {"inputs": "[MASK]" * 33}, "inputs: 1 32"),
        (MASKS, {"inputs": f"[MASK] {LONG}"}, "inputs: text 103"),
        (MASKS, {"inputs": "[MASK]", "parameters": {"targets": []}}, "parameters.targets:"),
        (MASKS, {"inputs": "[MASK]", "parameters": {"top_k": 101}}, "parameters.top_k: <= 100"),
        (
            MASKS,
            {"inputs": "[MASK]", "parameters": {"tokenizer_kwargs": {"x": 1}}},
            "parameters.tokenizer_kwargs: Object",
        ),
        (QUESTIONS, {"inputs": {"question": "who ?"}}, "inputs: question context"),
        (QUESTIONS, {"inputs": {"question": "who ?", "context": " "}}, "inputs.context: text not empty"),
        (
            QUESTIONS,
            {"inputs": {"question": LONG, "context": "a"}},
            "inputs.question: 100 max_seq_len=64",
        ),
        (
            QUESTIONS,
            {"question": "who ?", "context": "a", "parameters": {"max_seq_len": 65}},
            "parameters.max_seq_len: 64",
        ),
        (
            QUESTIONS,
            {"question": "who ?", "context": "cat " * 6000, "parameters": {"max_seq_len": 64, "doc_stride": 58}},
            "inputs.context: 6000 64",
        ),
        (GENERATES, {"inputs": LONG}, "inputs: text 102"),
        (
            GENERATES,
            {"inputs": "a", "parameters": {"max_new_tokens": 64}},
            "parameters.max_new_tokens: 63",
        ),
        (
            GENERATES,
            {"inputs": "a", "parameters": {"num_beams": MAX_BEAMS + 1}},
            "parameters.num_beams: <= 16",
        ),
        (
            GENERATES,
            {"inputs": "a", "parameters": {"num_return_sequences": 2}},
            "parameters.num_return_sequences: must be at",
        ),
        (
            GENERATES,
            {"inputs": "a", "parameters": {"tgt_lang": "de"}},
            "parameters.tgt_lang: model translates",
        ),
        (
            GENERATES,
            {"inputs": "a", "parameters": {"generate_parameters": {"max_length": -1}}},
            "parameters.generate_parameters",
        ),
        (SIMILAR, {"inputs": {"source_sentence": "a"}}, "inputs: source_sentence sentences"),
        (SIMILAR, {"inputs": {"source_sentence": 1, "sentences": ["a"]}}, "inputs.source_sentence: text"),
        (SIMILAR, {"inputs": {"source_sentence": "a", "sentences": "a"}}, "inputs.sentences: list texts"),
        (
            SIMILAR,
            {"inputs": {"source_sentence": "a", "sentences": ["a"] * 256}},
            "inputs: 256 sentences",
        ),
        (FEATURES, {"inputs": LONG}, "inputs: text 102"),
    ],
)
def test_a_bad_request_fails_alone(load: TaskLoader, model: tuple[str, str], body: Any, error: str) -> None:
    handler, _ = load(*model)
    before, failed, after = ask(handler, GOOD[model], body, GOOD[model])
    assert isinstance(failed, InvalidRequest)
    assert says(failed, error)
    assert before == after
    assert not isinstance(before, LMIError)


@pytest.mark.parametrize(
    ("content_type", "data", "error"),
    [
        ("application/json", b"{", "body not valid JSON"),
        ("application/json", b'{"inputs": "\xff"}', "body not valid JSON"),
        ("application/json", b"[" * 5000, "body not valid JSON"),
        ("application/json", b"[1" + b",1" * 10_000 + b"]", "body 10000 JSON"),
        ("text/plain", b"\xff", "text/plain cannot read"),
        ("text/csv", b"a,b\n1,2\n", "text/csv cannot read: line"),
        ("text/csv", b"inputs\n" + b"a\n" * (MAX_ITEMS + 1), f"inputs: {MAX_ITEMS} items"),
        ("text/csv", b"inputs\na" + b"," * 1_000_001, "body 1000000 commas"),
        ("multipart/form-data", b"x", "content multipart/form-data not supported"),
        ("application/octet-stream", b"x", "inputs: must text"),
    ],
)
def test_a_body_that_cannot_be_read_fails_alone(load: TaskLoader, content_type: str, data: bytes, error: str) -> None:
    handler, _ = load(*CLASSIFIER)
    failed, right = answers(handler, of_type(content_type, data), as_json(GOOD[CLASSIFIER]))
    assert isinstance(failed, InvalidRequest)
    assert says(failed, error)
    assert isinstance(right, Output)


def test_no_more_of_a_csv_body_is_decoded_than_may_be_in_it() -> None:
    body = of_type("text/csv", b"inputs\n" + b"a\n" * 200_000)
    tracemalloc.start()
    with pytest.raises(InvalidRequest):
        _decode(body, reads_files=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_an_input_on_which_the_model_fails_fails_alone(load: TaskLoader) -> None:
    """A text whose mask is cut off passes all checks, and then the library raises an error for the whole batch."""
    handler, _ = load(*MASKS)
    cut = {"inputs": f"{LONG} [MASK]", "parameters": {"tokenizer_kwargs": {"truncation": True}}}
    good = {"inputs": "a [MASK]", "parameters": {"tokenizer_kwargs": {"truncation": True}}}
    first, failed, second = ask(handler, good, cut, good)
    assert isinstance(failed, Exception)
    assert "mask_token" in str(failed)
    assert first == second == ask(handler, good)[0]


def test_requests_with_different_parameters_share_a_batch(load: TaskLoader) -> None:
    handler, _ = load(*CLASSIFIER)
    bodies = [{"inputs": "a cat", "parameters": {"top_k": count}} for count in (1, 2, 1, 3)]
    assert [len(labels) for (labels,) in ask(handler, *bodies)] == [1, 2, 1, 3]


def test_bodies_besides_json(load: TaskLoader) -> None:
    handler, _ = load(*CLASSIFIER)
    ((expected,),) = ask(handler, {"inputs": "a cat"})
    found = answers(
        handler,
        of_type("text/plain", b"a cat"),
        of_type("text/csv", b"inputs\na cat\n"),
        as_json(["a cat"]),
        of_type("application/json", b'{"inputs": "a cat", "parameters": null, "options": {"wait_for_model": true}}'),
    )
    for answer in found:
        assert [label["label"] for label in value_of(answer)] == [expected["label"]]
    questions, _ = load(*QUESTIONS)
    csv = of_type("text/csv", b"question,context\nwho ?,a cat\nwhat ?,the hat\n")
    first, second = value_of(answers(questions, csv)[0])
    assert (first["answer"] in "a cat", second["answer"] in "the hat") == (True, True)


def test_answers_besides_json(load: TaskLoader) -> None:
    handler, _ = load(*CLASSIFIER)
    body = json.dumps({"inputs": ["a cat", "a dog"]}).encode()
    (csv,) = answers(handler, of_type("application/json", body, Accept="text/csv"))
    assert isinstance(csv, Output)
    assert csv.properties["Content-Type"] == "text/csv"
    assert csv.data().decode().splitlines()[0] == "label,score"
    nested = json.dumps({"inputs": ["a cat"], "parameters": {"top_k": 2}}).encode()
    (failed,) = answers(handler, of_type("application/json", nested, Accept="text/csv"))
    assert says(failed, "Accept: cannot written text/csv")


def test_the_answer_of_features_has_a_limit(load: TaskLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    handler, _ = load(*FEATURES)
    monkeypatch.setattr("lmi_handlers.tasks.features.MAX_NUMBERS", 32 * 5)
    right, failed = ask(handler, {"inputs": "a cat sat"}, {"inputs": "a cat sat ."})
    assert len(right[0][0]) == 5
    assert says(failed, "inputs: 6 192 160")


def test_bad_images(load: TaskLoader) -> None:
    handler, _ = load(*IMAGES)
    file = io.BytesIO()
    Image.new("RGB", (3000, 10)).save(file, "PNG")
    texts = [encoded(file.getvalue()), "#", "https://example.com/a.png", "/etc/passwd=", 3]
    found = ask(handler, *({"inputs": item} for item in texts), {"inputs": [texts[0]] * 17})
    assert tell(
        [str(error).partition(";")[0] for error in found],
        [
            "inputs: 3000 10",
            "inputs: not base64 Only",
            "inputs: example.com 443 option.allowed_media_domains",
            "inputs: not readable PNG JPEG WEBP GIF",
            "inputs: image base64 URL",
            "inputs: 17 images",
        ],
    )
    file = io.BytesIO()
    Image.effect_noise((90, 90), 80).save(file, "PNG")
    (untyped,) = answers(handler, Input({}, [("data", file.getvalue())]))
    assert len(value_of(untyped)[0]) == 3
    (broken,) = answers(handler, of_type("image/png", file.getvalue()[:600]))
    assert says(broken, "inputs: not readable image")


def test_bad_sounds(load: TaskLoader) -> None:
    handler, _ = load(*SOUNDS)
    files = [b"x", wav(b""), wav(b"\0\0" * 10)[:20]]
    found = ask(handler, *({"inputs": encoded(file)} for file in files), {"inputs": "#"}, {"inputs": 3})
    assert tell(
        found,
        [
            "inputs: not WAV",
            "inputs: no samples",
            "inputs: not WAV",
            "inputs: not base64 Only",
            "inputs: sound base64",
        ],
    )
    long = wav(b"\0" * (MAX_SECONDS * RATE + 1), width=1)
    (failed,) = answers(handler, of_type("audio/wav", long))
    assert says(failed, "inputs: 60 s long")


@pytest.mark.parametrize(
    ("width", "frames"),
    [
        (1, b"\x80\xc0\x40"),
        (2, b"\0\0\0\x40\0\xc0"),
        (3, b"\0\0\0\0\0\x40\0\0\xc0"),
        (4, b"\0\0\0\0\0\0\0\x40\0\0\0\xc0"),
    ],
)
def test_samples_of_any_width(width: int, frames: bytes) -> None:
    np.testing.assert_allclose(read_wav(wav(frames, width=width), RATE, 3), [0, 0.5, -0.5])


def test_channels_are_averaged() -> None:
    np.testing.assert_allclose(read_wav(wav(b"\x80\xc0\x40\x40", width=1, channels=2), RATE, 2), [0.25, -0.5])


@pytest.mark.parametrize(
    ("architecture", "model_type", "task"),
    [
        ("BertForSequenceClassification", "bert", "text-classification"),
        ("HubertForSequenceClassification", "hubert", "audio-classification"),
        ("ASTForAudioClassification", "audio-spectrogram-transformer", "audio-classification"),
        ("T5ForConditionalGeneration", "t5", "text2text-generation"),
        ("MarianMTModel", "marian", "text2text-generation"),
        ("Gemma3ForConditionalGeneration", "gemma3", None),
        ("WhisperForConditionalGeneration", "whisper", "automatic-speech-recognition"),
        ("TapasForQuestionAnswering", "tapas", None),
        ("LlamaForCausalLM", "llama", None),
    ],
)
def test_the_task_of_an_architecture(architecture: str, model_type: str, task: str | None) -> None:
    assert task_of(architecture, model_type) == task
    assert task is None or task in TASKS


def test_samples_of_an_odd_width_are_refused() -> None:
    sound = bytearray(wav(bytes(40)))
    sound[32:36] = (5).to_bytes(2, "little") + (40).to_bytes(2, "little")  # bytes per frame, bits per sample
    with pytest.raises(InvalidRequest, match="has samples of 40 bits"):
        read_wav(bytes(sound), RATE, 100)
