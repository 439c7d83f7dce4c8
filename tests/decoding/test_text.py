"""Text in, text out: the tokenizer, chat template and stop tokens of the model's folder, and text as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from range_server import serving

import graphcut
from graphcut import Cascade, CascadeError, Into, RecordError, RunError, Sampling, Tokenizer, UsageError
from graphcut.core.digests import file_digest
from graphcut.decoding.text_stream import TextStream

from cases import each
from conftest import FIXTURES, simple_plan
from tokenizers_by_hand import KINDS, LINES, folder_with

export_genai = partial(graphcut.export, to="genai")
export_js = partial(graphcut.export, to="js")
export_mobile = partial(graphcut.export, to="mobile")

WHOLE = {kind: make() for kind, make in KINDS.items()}
SCRIPTS = st.text(st.sampled_from("ab é\n.Жш世界नमि🚀👩👧\u200d🇩🇪"), max_size=24)
MESSAGES = [{"role": "user", "content": "Hi 🚀"}]


def cut(kind: str, folder: Path, **files: object) -> Cascade:
    path = folder_with(kind, folder, **files)
    return graphcut.split(path, simple_plan(path, 2), folder / "model.parts")


# Text as it comes


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(before=SCRIPTS, text=SCRIPTS)
def test_pieces_together_are_the_text_that_follows_the_prompt(kind: str, before: str, text: str) -> None:
    whole = WHOLE[kind]
    prompt, tokens = whole.encode(before).ids, whole.encode(text, add_special_tokens=False).ids
    stream = TextStream(whole.decode, prompt)
    pieces = [stream.add(token) for token in tokens]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.end() == whole.decode(prompt + tokens)[len(whole.decode(prompt)) :]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(tokens=st.lists(st.integers(0, 349), max_size=20))
def test_tokens_that_make_no_text_neither_fail_nor_stop_the_stream(kind: str, tokens: list[int]) -> None:
    stream = TextStream(WHOLE[kind].decode)
    said = "".join(map(stream.add, tokens)) + stream.end()
    if "\ufffd" not in (expected := WHOLE[kind].decode(tokens)):
        assert said == expected


def test_a_character_is_held_back_until_it_is_complete() -> None:
    whole = WHOLE["qwen"]
    tokens = whole.encode("🚀!").ids
    stream = TextStream(whole.decode)
    assert [stream.add(token) for token in tokens] == ["", "", "", "🚀", "!"]
    cut_off = TextStream(whole.decode)
    assert [cut_off.add(token) for token in tokens[:2]] == ["", ""]
    assert cut_off.end() == "\ufffd", "no more tokens came"


@settings(max_examples=200, deadline=None)
@given(text=st.text("ab.", max_size=20), stops=st.lists(st.text("ab.", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    stream, said = TextStream(lambda ids: "".join(map(chr, ids)), stop=stops), ""
    for letter in text:
        said += stream.add(ord(letter))
        if stream.is_stopped:
            break
    said += stream.end()
    ends = {text.find(stop) + len(stop): text.find(stop) for stop in stops if stop in text}
    first = min(ends, default=None)
    assert stream.is_stopped == bool(ends)
    if first is None:
        assert said == text
    else:
        assert said == text[: min(text.find(stop) for stop in stops if stop in text[:first])]


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(lambda ids: "".join(map(chr, ids)), stop=["###"])
    assert [stream.add(ord(letter)) for letter in "a##b###"] == ["a", "", "", "##b", "", "", ""]
    assert (stream.is_stopped, stream.end()) == (True, "")


# What the folder of a model says


def test_a_text_becomes_tokens_and_a_text_again(tmp_path: Path) -> None:
    tokenizer = Tokenizer(cut("llama", tmp_path))
    assert tokenizer.encode("Hi") == WHOLE["llama"].encode("Hi").ids
    assert tokenizer.encode("Hi")[0] == 1, "<s> begins a text"
    for line in LINES:
        assert tokenizer.decode(tokenizer.encode(line)) == line


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [
        ("phi", "<s><|system|>\nBe.<|end|>\n<|user|>\nHi 🚀<|end|>\n<|assistant|>\n"),
        ("qwen", "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nHi 🚀<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_the_chat_template_makes_the_prompt(tmp_path: Path, kind: str, prompt: str) -> None:
    tokenizer = Tokenizer(cut(kind, tmp_path))
    expected = WHOLE[kind].encode(prompt, add_special_tokens=False).ids
    assert tokenizer.chat([{"role": "system", "content": "Be."}, *MESSAGES]) == expected


def test_a_template_file_counts_more_than_that_of_the_settings(tmp_path: Path) -> None:
    path = folder_with("qwen", tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }}!", encoding="utf-8")
    tokenizer = Tokenizer(graphcut.split(path, Into(2)))
    assert tokenizer.decode(tokenizer.chat(MESSAGES)) == "Hi 🚀!"


def test_of_several_templates_the_default_counts(tmp_path: Path) -> None:
    templates = [
        {"name": name, "template": "{{ messages[-1].content }}" + end} for name, end in (("rag", "?"), ("default", "!"))
    ]
    tokenizer = Tokenizer(cut("qwen", tmp_path, tokenizer_config={"chat_template": templates}))
    assert tokenizer.decode(tokenizer.chat(MESSAGES)) == "Hi 🚀!"
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match="has no chat template"):
        Tokenizer(cut("qwen", tmp_path / "other", tokenizer_config={"chat_template": templates[:1]})).chat(MESSAGES)


@each(
    ("template", "said"),
    [
        ("{{ raise_exception('no system') }}", "the chat template refuses the conversation: no system"),
        ("{% if %}", "the chat template of .* fails"),
        ("{{ ''.__class__.__mro__ }}", "the chat template of .* fails"),
        (None, "has no chat template"),
    ],
)
def test_a_template_that_fails_is_named(tmp_path: Path, template: str | None, said: str) -> None:
    tokenizer = Tokenizer(cut("llama", tmp_path, tokenizer_config={"chat_template": template}))
    with pytest.raises(UsageError, match=said):
        tokenizer.chat(MESSAGES)


def test_the_tokens_that_end_a_text_are_those_of_the_first_file_that_names_any(tmp_path: Path) -> None:
    path = folder_with("qwen", tmp_path, generation_config={"eos_token_id": [5, 6]})
    assert Tokenizer(graphcut.split(path, Into(2), tmp_path / "a")).stop == {2}  # genai_config.json
    (tmp_path / "genai_config.json").unlink()
    assert Tokenizer(graphcut.split(path, Into(2), tmp_path / "b")).stop == {5, 6}
    (tmp_path / "generation_config.json").unlink()
    (im_end,) = Tokenizer(graphcut.split(path, Into(2), tmp_path / "c")).stop
    assert WHOLE["qwen"].id_to_token(im_end) == "<|im_end|>"


# Files of a cascade


@pytest.mark.parametrize("weights", ["copy", "share"])
def test_a_split_carries_the_tokenizer_along(tmp_path: Path, weights: str) -> None:
    path = folder_with("qwen", tmp_path, generation_config={})
    cascade = graphcut.split(path, Into(2), weights=weights)  # type: ignore[arg-type]
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "genai_config.json")
    assert cascade.manifest.text_files == {name: file_digest(tmp_path / name) for name in names}
    assert all((cascade.root / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)
    (tmp_path / "generation_config.json").unlink()
    again = graphcut.split(path, Into(2), weights=weights, force=True)  # type: ignore[arg-type]
    assert tuple(again.manifest.text_files) == (*names[:2], names[3])
    assert not (again.root / "generation_config.json").exists()


def test_the_tokenizer_of_a_larger_vocabulary_is_refused(tmp_path: Path) -> None:
    path = folder_with("qwen", tmp_path)
    larger = json.loads((tmp_path / "tokenizer.json").read_text())
    larger["model"]["vocab"] |= {f"word-{i}": 512 + i for i in range(300)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(larger))
    cascade = graphcut.split(path, Into(2))
    with pytest.raises(UsageError, match="has token ids up to 811, and the model scores 512 tokens"):
        Tokenizer(cascade)


def test_tokens_that_were_added_to_a_tokenizer_need_no_logits(tmp_path: Path) -> None:
    path = folder_with("qwen", tmp_path)
    large = deepcopy(KINDS["qwen"]())
    large.add_tokens([f"word-{i}" for i in range(300)])
    large.save(str(tmp_path / "tokenizer.json"))
    (added,) = Tokenizer(graphcut.split(path, Into(2))).encode("word-299", is_whole=False)
    assert added >= 512


def test_a_cascade_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    cascade = graphcut.split(FIXTURES / "tiny-llama-fp32" / "model.onnx", Into(2), tmp_path / "parts")
    with pytest.raises(UsageError, match=r"names no tokenizer.json, and text needs one") as caught:
        Tokenizer(cascade)
    assert "split it again" in caught.value.hint


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    cascade = cut("qwen", tmp_path, tokenizer={})
    with pytest.raises(RecordError, match=r"tokenizer\.json can't be read"):
        Tokenizer(cascade)


@each("change", [lambda file: file.write_text("{}"), Path.unlink])
def test_text_files_that_changed_after_the_split_are_not_used(change: Callable[[Path], object], tmp_path: Path) -> None:
    """Those that end a text and draw tokens, too."""
    cascade = cut("qwen", tmp_path, generation_config={"eos_token_id": 2})
    change(cascade.root / "generation_config.json")
    with pytest.raises(RunError, match=r"generation_config\.json (was changed after the model was cut|is missing)"):
        Tokenizer(cascade)


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
def test_a_missing_package_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    cascade = cut("qwen", tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"text needs the package {package}") as caught:
        Tokenizer(cascade).chat(MESSAGES)
    assert "graphcut[text]" in caught.value.hint


def test_fetched_parts_come_with_the_tokenizer(tmp_path: Path) -> None:
    cascade = cut("qwen", tmp_path)
    with serving(cascade.root) as served:
        found = graphcut.fetch(f"{served.url}cascade.json", tmp_path / "fetched", parts=[1])
        assert Tokenizer(found).encode("The fox 🚀") == Tokenizer(cascade).encode("The fox 🚀")
        (cascade.root / "tokenizer.json").write_text("{}", encoding="utf-8")
        with pytest.raises(CascadeError, match=r"tokenizer\.json is not the file of the split"):
            graphcut.fetch(f"{served.url}cascade.json", tmp_path / "other")


@pytest.mark.parametrize("export", [export_js, export_genai, export_mobile])
def test_an_export_carries_the_files_also_when_the_model_is_gone(tmp_path: Path, export: Callable[..., object]) -> None:
    cascade = cut("qwen", tmp_path, generation_config={"temperature": 0.6})
    for file in (*tmp_path.glob("*.json"), *tmp_path.glob("model.onnx*")):
        file.unlink()
    export(cascade, tmp_path / "export")
    for name in set(cascade.manifest.text_files) - {"genai_config.json"}:
        assert (tmp_path / "export" / name).read_bytes() == (cascade.root / name).read_bytes()
    assert (tmp_path / "export" / "genai_config.json").exists()


def test_the_files_say_how_tokens_are_drawn_and_how_many_there_may_be(tmp_path: Path) -> None:
    longest = {"context_length": 64}
    drawn = {"do_sample": True, "temperature": 0.6, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}
    for name, files, expected in (
        ("plain", {}, (Sampling(), None)),
        ("hugging face", {"generation_config": drawn}, (Sampling(1.1, 0.6, 40, 0.9), None)),
        ("greedy", {"generation_config": drawn | {"do_sample": False}}, (Sampling(1.1), None)),
        (
            "genai",
            {
                "genai_config": {"model": longest, "search": drawn | {"top_k": 7}},
                "generation_config": drawn,
            },
            (Sampling(1.1, 0.6, 7, 0.9), 64),
        ),
    ):
        (tmp_path / name).mkdir()
        cascade = cut("llama", tmp_path / name, **({"genai_config": {}} | files))
        tokenizer = Tokenizer(cascade)
        assert (tokenizer.sampling, tokenizer.max_context) == expected, name
