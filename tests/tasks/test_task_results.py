"""Tasks compute what the transformers library computes for each input alone, whatever else is in the batch."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from task_handlers import TaskLoader, answers, ask, encoded, of_type, value_of, wav
from tiny_tasks import WORDS, tokenizer

TEXTS = [" ".join(WORDS[start : start + 3 + 4 * start]) for start in range(8)]
LABELS = ["sport", "news", "film"]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskLoader]:
    loader = TaskLoader(tmp_path_factory.mktemp("tasks"))
    yield loader
    loader.close()


def assert_close(found: Any, expected: Any) -> None:
    """Compare JSON values, numbers within 1e-4."""
    assert _rounded(found) == pytest.approx(_rounded(expected), abs=1e-4)
    assert json.dumps(_texts(found)) == json.dumps(_texts(expected))


def _rounded(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for name in sorted(value) for number in _rounded(value[name])]
    if isinstance(value, list | tuple):
        return [number for item in value for number in _rounded(item)]
    return [float(value)] if isinstance(value, float | np.floating) else []


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _texts(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_texts(item) for item in value]
    return "number" if isinstance(value, float | np.floating) else value


@pytest.mark.parametrize(
    ("model", "task", "parameters"),
    [
        ("BertForSequenceClassification", "text-classification", {}),
        ("BertForSequenceClassification", "text-classification", {"top_k": None, "function_to_apply": "sigmoid"}),
        ("RobertaForSequenceClassification", "text-classification", {"top_k": 2}),
        ("BertForTokenClassification", "token-classification", {}),
        ("BertForTokenClassification", "token-classification", {"aggregation_strategy": "first"}),
        ("DistilBertForSequenceClassification", "zero-shot-classification", {"candidate_labels": LABELS}),
        (
            "DistilBertForSequenceClassification",
            "zero-shot-classification",
            {"candidate_labels": "cat, dog", "multi_label": True, "hypothesis_template": "it is {} ."},
        ),
        ("BertForMaskedLM", "fill-mask", {"top_k": 3}),
        ("BertForMaskedLM", "fill-mask", {"targets": ["cat", "dog"]}),
        ("BertModel", "feature-extraction", {}),
    ],
)
def test_a_batch_has_the_librarys_results(load: TaskLoader, model: str, task: str, parameters: dict[str, Any]) -> None:
    handler, path = load(model, task)
    texts = [f"[MASK] {text}" for text in TEXTS] if task == "fill-mask" else TEXTS
    alone: Any = transformers.pipeline(task, model=str(path), device="cpu")  # type: ignore[call-overload]
    expected = [alone(text, **parameters) for text in texts]
    if task == "text-classification" and "top_k" not in parameters:
        expected = [labelled for (labelled,) in expected]
    many, *singles = ask(
        handler,
        {"inputs": texts, "parameters": parameters},
        *({"inputs": text, "parameters": parameters} for text in texts),
    )
    assert_close(many, expected)
    for single, result in zip(singles, expected, strict=True):
        assert_close(single, result if task == "fill-mask" else [result])


def test_a_batch_is_one_forward_pass(load: TaskLoader) -> None:
    handler, _ = load("BertForSequenceClassification", "text-classification")
    rows: list[int] = []
    model: Any = handler._task
    model = model.model  # of this task
    hook = model.register_forward_hook(lambda _module, _inputs, output: rows.append(len(output.logits)))
    ask(handler, *({"inputs": text} for text in TEXTS), {"inputs": TEXTS})
    ask(handler, {"inputs": TEXTS * 9})
    hook.remove()
    assert rows == [16, 64, 8]


def test_pairs_of_texts(load: TaskLoader) -> None:
    handler, path = load("BertForSequenceClassification", "text-classification")
    pair = {"text": "the cat", "text_pair": "a dog sat"}
    expected = transformers.pipeline("text-classification", model=str(path), device="cpu")(pair)
    (found,) = ask(handler, {"inputs": pair})
    assert_close(found, [expected])


def test_answers_to_questions(load: TaskLoader) -> None:
    """The library has no pipeline for them any more: the best span of each context, from the logits of it alone."""
    handler, path = load("BertForQuestionAnswering", "question-answering")
    items = [{"question": "where is paris ?", "context": text} for text in TEXTS]
    model: Any = transformers.BertForQuestionAnswering.from_pretrained(path)
    words = tokenizer()
    for item, found in zip(items, *ask(handler, {"inputs": items}), strict=True):
        tokens = words(item["question"], item["context"], return_tensors="pt", return_offsets_mapping=True)
        offsets = tokens.pop("offset_mapping")[0]
        with torch.inference_mode():
            output = model(**tokens)
        of_context = torch.tensor([number == 1 for number in tokens.encodings[0].sequence_ids])
        counted = of_context.clone()
        counted[0] = True
        start, end = (
            logits[0].masked_fill(~counted, -10_000).softmax(0) for logits in (output.start_logits, output.end_logits)
        )
        spans = {
            (first, last): float(start[first] * end[last])
            for first in range(len(start))
            for last in range(first, min(first + 15, len(end)))
            if of_context[first] and of_context[last]
        }
        first, last = max(spans, key=lambda span: spans[span])
        begin, stop = int(offsets[first][0]), int(offsets[last][1])
        assert (found["start"], found["end"]) == (begin, stop)
        assert found["answer"] == item["context"][begin:stop]
        assert found["score"] == pytest.approx(spans[first, last], abs=1e-4)


def test_long_contexts_and_more_answers(load: TaskLoader) -> None:
    handler, _ = load("BertForQuestionAnswering", "question-answering")
    item = {"question": "who ?", "context": " . ".join(TEXTS)}
    impossible = {"handle_impossible_answer": True, "top_k": 100}
    best, several, none, only = ask(
        handler,
        {"inputs": item},
        {"inputs": item, "parameters": {"top_k": 3, "align_to_words": False}},
        {"question": "who ?", "context": "the cat sat", "parameters": impossible},
        {"inputs": [item]},
    )
    assert best["answer"] == item["context"][best["start"] : best["end"]]
    assert only == [best]
    assert len(several) == 3
    assert [answer["score"] for answer in several] == sorted((answer["score"] for answer in several), reverse=True)
    assert {"the cat sat", "sat", ""} <= {answer["answer"] for answer in none}


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "MarianMTModel", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("parameters", [{"max_new_tokens": 12}, {"max_length": 9, "num_beams": 3}])
def test_texts_from_texts(load: TaskLoader, name: str, parameters: dict[str, Any]) -> None:
    handler, path = load(name, "text2text-generation")
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(path)
    words = tokenizer()
    expected = []
    for text in TEXTS:
        ids = words(text, return_tensors="pt")["input_ids"]
        generated = model.generate(ids, **parameters)
        expected.append({"generated_text": words.decode(generated[0], skip_special_tokens=True)})
    found, nested = ask(
        handler,
        {"inputs": TEXTS, "parameters": parameters},
        {"inputs": TEXTS, "parameters": {"generate_parameters": parameters}},
    )
    assert found == nested == expected


def test_the_tasks_of_one_model_name_their_texts_and_add_its_prefix(load: TaskLoader) -> None:
    specific = {"summarization": {"prefix": "about : ", "max_new_tokens": 4, "num_beams": 2}}
    summaries, _ = load("T5ForConditionalGeneration", "summarization", task_specific_params=specific)
    translations, _ = load("T5ForConditionalGeneration", "translation_en_to_de")
    plain, _ = load("T5ForConditionalGeneration", "text2text-generation")
    ((summary,),) = ask(summaries, {"inputs": "a cat"})
    ((text,),) = ask(plain, {"inputs": "about : a cat", "parameters": {"max_new_tokens": 4, "num_beams": 2}})
    assert summary == {"summary_text": text["generated_text"]}
    ((translation,),) = ask(translations, {"inputs": "a cat"})
    assert translation.keys() == {"translation_text"}


def test_several_texts_for_each(load: TaskLoader) -> None:
    handler, _ = load("BartForConditionalGeneration", "text2text-generation")
    parameters = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 4}
    ((first, second),) = ask(handler, {"inputs": ["a cat", "the dog sat"], "parameters": parameters})
    assert [len(first), len(second)] == [2, 2]
    assert first[0].keys() == {"generated_text"}


def test_similarity_is_that_of_mean_vectors(load: TaskLoader) -> None:
    handler, path = load("BertModel", "sentence-similarity")
    extract = transformers.pipeline("feature-extraction", model=str(path), device="cpu")
    means = [np.array(extract(text)[0]).mean(axis=0) for text in TEXTS]
    cosines = [float(means[0] @ mean / np.linalg.norm(means[0]) / np.linalg.norm(mean)) for mean in means[1:]]
    item = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    single, many = ask(handler, {"inputs": item}, {"inputs": [item, item]})
    assert single == pytest.approx(cosines, abs=1e-4)
    assert many[1] == pytest.approx(cosines, abs=1e-4)


def test_images(load: TaskLoader) -> None:
    handler, path = load("ViTForImageClassification", "image-classification")
    pictures = [Image.effect_noise((40 + 10 * place, 50), 80 + place).convert("RGB") for place in range(3)]
    alone = transformers.pipeline("image-classification", model=str(path), device="cpu")
    expected = [alone(picture) for picture in pictures]
    files = [_png(picture) for picture in pictures]
    found = answers(handler, *(of_type("image/png", file) for file in files))
    for answer, result in zip(found, expected, strict=True):
        assert_close(value_of(answer), [result])
    texts = [encoded(file) for file in files]
    (many, top) = ask(
        handler,
        {"inputs": texts, "parameters": {}},
        {"inputs": f"data:image/png;base64,{texts[0]}", "parameters": {"top_k": 1}},
    )
    assert_close(many, expected)
    assert_close(top, [expected[0][:1]])


@pytest.mark.parametrize("name", ["Wav2Vec2ForSequenceClassification", "HubertForSequenceClassification"])
def test_sounds_of_different_lengths(load: TaskLoader, name: str) -> None:
    handler, path = load(name, "audio-classification")
    random = np.random.default_rng(3)
    sounds = [random.uniform(-0.5, 0.5, length).astype(np.float32) for length in (1600, 2400, 1600)]
    files = [wav((sound * 32767).astype("<i2").tobytes()) for sound in sounds]
    heard = [(sound * 32767).astype("<i2").astype(np.float32) / 32768 for sound in sounds]
    alone: Any = transformers.pipeline("audio-classification", model=str(path), device="cpu")
    found = answers(handler, *(of_type("audio/wav", file) for file in files))
    for answer, sound in zip(found, heard, strict=True):
        assert_close(value_of(answer), [alone(sound)])
    (many,) = ask(handler, {"inputs": [encoded(file) for file in files], "parameters": {"top_k": 1}})
    assert [len(result) for result in many] == [1, 1, 1]


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
