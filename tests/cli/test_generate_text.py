"""`graphcut generate --prompt`: text in, text out."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import graphcut
from graphcut import Into, Tokenizer, generate

from command_line import SCRIPT, Run, command, environment, run
from families import FAMILIES
from families.by_hand import rows_of_ids
from tokenizers_by_hand import folder_with

__all__ = ["run"]


@pytest.fixture(scope="module")
def cascade(tmp_path_factory: pytest.TempPathFactory) -> graphcut.Cascade:
    path = folder_with("qwen", tmp_path_factory.mktemp("qwen"))
    return graphcut.split(path, Into(2), path.with_name("model.parts"))


def continued(cascade: graphcut.Cascade, text: str, max_tokens: int = 12) -> tuple[list[int], str]:
    """The tokens that Python gets, and their text."""
    tokenizer = Tokenizer(cascade)
    prompt = tokenizer.encode(text)
    (tokens,) = generate(cascade, [prompt], stop=tokenizer.stop, max_tokens=max_tokens).all()
    stream = tokenizer.stream(prompt)
    return tokens, "".join(stream.add(token) for token in tokens if token not in tokenizer.stop) + stream.end()


def test_a_prompt_is_continued(run: Run, cascade: graphcut.Cascade) -> None:
    result = run("generate", cascade.root, "--prompt", "The fox 🚀", "--max-tokens", 12)
    assert (result.code, result.out) == (0, continued(cascade, "The fox 🚀")[1] + "\n")
    number = len(Tokenizer(cascade).encode("The fox 🚀"))
    rates = rf"12 tokens, the first after .+, then .+ a second; the prompt of {number} tokens at [\d.,]+ a second; .+"
    assert re.fullmatch(rates, result.err.splitlines()[0])


def test_a_file_has_a_prompt_in_each_line(run: Run, cascade: graphcut.Cascade, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The fox\n\nनम 🚀\n", encoding="utf-8")
    words = ("--prompt", f"@{tmp_path / 'prompts.txt'}", "--max-tokens", 12, "--batch", 1)
    tokens, texts = map(list, zip(*(continued(cascade, text) for text in ("The fox", "नम 🚀")), strict=True))
    assert run("generate", cascade.root, *words, "-q").out == "".join(f"{text}\n" for text in texts)
    told = json.loads(run("generate", cascade.root, *words, "--json").out.splitlines()[-1])
    assert [row["text"] for row in told["sequences"]] == texts
    assert [row["tokens"] for row in told["sequences"]] == tokens
    missing = run("generate", cascade.root, "--prompt", f"@{tmp_path / 'none.txt'}")
    assert (missing.code, missing.error[0]) == (3, f"{tmp_path / 'none.txt'} can't be read: No such file or directory")


def test_text_ends_before_a_stop_text(run: Run, cascade: graphcut.Cascade) -> None:
    text = continued(cascade, "The fox", max_tokens=40)[1]
    stop = text[5:7]
    words = ("--prompt", "The fox", "--max-tokens", 40, "--stop", stop, "--stop", "never", "--json")
    (told,) = json.loads(run("generate", cascade.root, *words).out.splitlines()[-1])["sequences"]
    assert (told["text"], told["end"]) == (text[: text.index(stop)], "stop")


def test_tokens_are_drawn_with_a_seed(run: Run, cascade: graphcut.Cascade) -> None:
    words = ("generate", cascade.root, "--prompt-ids", "3,1", "--max-tokens", 12, "--temperature", 2, "-q")
    how = graphcut.Sampling(temperature=2, top_k=40, top_p=0.9, repetition_penalty=1.1, seed=7)
    more = ("--top-k", 40, "--top-p", 0.9, "--repetition-penalty", 1.1, "--seed", 7)
    (expected,) = generate(cascade, [[3, 1]], max_tokens=12, sampling=how).all()
    assert run(*words, *more).out == " ".join(map(str, expected)) + "\n"
    assert run(*words).out == run(*words).out != run(*words, "--seed", 1).out


def test_an_encoder_reads_the_prompt_or_the_inputs(run: Run, tmp_path: Path) -> None:
    folder = FAMILIES["t5"].write(tmp_path / "t5")
    cascade = graphcut.split(graphcut.load(folder), Into(2))
    ids = Tokenizer(cascade).encode("bo fu le")
    (tokens,) = FAMILIES["t5"].reference(folder, rows_of_ids([ids]), 8)
    text = Tokenizer(cascade).decode(tokens)
    assert run("generate", cascade.root, "--prompt", "bo fu le", "--max-tokens", 8, "-q").out == f"{text}\n"
    stop = Tokenizer(cascade).stop
    (tokens,) = generate(cascade, [ids], max_tokens=8, stop=stop, beams=4).all()
    found = run("generate", cascade.root, "--prompt", "bo fu le", "--max-tokens", 8, "--beams", 4, "--json")
    document = json.loads(found.out.splitlines()[-1])
    assert (document["tokens_per_s"], document["prompt_tokens_per_s"]) == (None, None), "they come at once"
    told = document["sequences"]
    assert [(row["tokens"], row["text"]) for row in told] == [(tokens, Tokenizer(cascade).decode(tokens))]
    assert "beams" in run("generate", cascade.root, "--prompt", "bo", "--beams", 4, "--stop", "bo bo").error[0]
    folder = FAMILIES["whisper"].write(tmp_path / "whisper")
    cascade, inputs = graphcut.split(graphcut.load(folder), Into(2)), FAMILIES["whisper"].inputs(1)
    np.savez(tmp_path / "sound.npz", **inputs)  # type: ignore[arg-type]
    (tokens,) = FAMILIES["whisper"].reference(folder, inputs, 8)
    heard = run("generate", cascade.root, "--inputs", tmp_path / "sound.npz", "--max-tokens", 8, "-q")
    text = Tokenizer(cascade).decode(tokens)
    assert heard.out == f"{text}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there is no prompt"),
        (("--prompt", "a", "--stop", ""), "a text that ends a sequence is empty"),
        (("--chat", "--prompt", "a"), "--chat reads messages from the standard input"),
    ],
)
def test_what_makes_no_sense_is_misuse(
    run: Run, cascade: graphcut.Cascade, words: tuple[str, ...], message: str
) -> None:
    result = run("generate", cascade.root, *words)
    assert (result.code, result.error[0]) == (2, message)


def test_a_number_that_sampling_does_not_take_is_refused_by_its_option_and_not_offered_by_the_help(
    run: Run, cascade: graphcut.Cascade
) -> None:
    words = "generate", cascade.root, "--prompt", "a"
    refused = run(*words, "--top-p", "0"), run(*words, "--top-p", "1.5"), run(*words, "--repetition-penalty", "0")
    assert [(one.code, one.error[1]) for one in refused] == [
        (2, "--top-p is a number above 0, at most 1"),
        (2, "--top-p is a number above 0, at most 1"),
        (2, "--repetition-penalty is above 0, in the range of float32"),
    ]
    assert "0<=x<=1" not in run("generate", "--help").out


def test_show_and_dry_runs_name_the_files(run: Run, cascade: graphcut.Cascade) -> None:
    assert "tokenizer.json, tokenizer_config.json, genai_config.json" in run("show", cascade.root).out
    planned = run("split", cascade.source, "--num-splits", 2, "-o", cascade.root.with_name("other"), "--dry-run")
    assert [line for line in planned.out.splitlines() if "/tokenizer.json  " in line]


def test_ctrl_c_keeps_what_was_said(cascade: graphcut.Cascade) -> None:
    words = [str(SCRIPT), "generate", str(cascade.root), "--prompt", "The fox", "--max-tokens", "4000"]
    words += ["--via", "processes"]  # which takes longer
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as running:
        assert running.stdout is not None
        first = running.stdout.read(40)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert (first + out).endswith(b"\n")
    found = re.search(r"(\d+) tokens, the first after", err.decode())
    assert found is not None
    assert continued(cascade, "The fox", max_tokens=int(found[1]))[1].startswith((first + out).decode()[:-2])
    assert err.decode().splitlines()[-1].startswith("error: interrupted")


def answers(cascade: graphcut.Cascade, *messages: str, max_tokens: int = 12) -> list[str]:
    """What Python answers, turn by turn."""
    tokenizer, said, found = Tokenizer(cascade), list[dict[str, str]](), list[str]()
    for message in messages:
        said.append({"role": "user", "content": message})
        (tokens,) = generate(cascade, [tokenizer.chat(said)], max_tokens=max_tokens, stop=tokenizer.stop).all()
        stream = tokenizer.stream()
        found.append("".join(stream.add(token) for token in tokens if token not in tokenizer.stop) + stream.end())
        said.append({"role": "assistant", "content": found[-1]})
    return found


LONG = "Hello 🚀" * 10  #: more than a piece of a prompt.


@pytest.mark.parametrize("via", ["threads", "processes"])
def test_a_chat_answers_each_line_and_remembers_the_others(
    run: Run, cascade: graphcut.Cascade, monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{LONG}\n\nThe fox\nAnd?\n"))
    result = run("generate", cascade.root, "--chat", "--max-tokens", 12, "--via", via)
    assert (result.code, result.out) == (
        0,
        "".join(f"{text}\n" for text in answers(cascade, LONG, "The fox", "And?")),
    )
    lines = result.err.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["12 tokens"] * 3
    assert [" of them reused" in line for line in lines] == [False, True, True]


def test_a_chat_as_json_has_a_line_for_each_token_and_a_record_for_each_answer(
    run: Run, cascade: graphcut.Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{LONG}\nThe fox\n"))
    result = run("generate", cascade.root, "--chat", "--json", "--max-tokens", 12)
    lines = [json.loads(line) for line in result.out.splitlines()]
    records = [line for line in lines if "format" in line]
    assert [lines.index(record) for record in records] == [12, 25]
    for number, (text, record) in enumerate(zip(answers(cascade, LONG, "The fox"), records, strict=True)):
        (answer,) = record["sequences"]
        tokens = [line for line in lines if line.get("sequence") == number]
        assert (answer["text"], answer["end"]) == (text, "max_tokens")
        assert [line["token"] for line in tokens] == answer["tokens"]
        assert text.startswith("".join(line["text"] for line in tokens))
    assert [record["reused_tokens"] > 0 for record in records] == [False, True]
    assert result.err == ""


def test_ctrl_c_ends_an_answer_and_not_the_chat(cascade: graphcut.Cascade) -> None:
    words = [str(SCRIPT), "generate", str(cascade.root), "--chat", "--max-tokens", "700", "-q"]
    words += ["--via", "processes"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment()) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"Hello\n")
        running.stdin.flush()
        first = running.stdout.read(20)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(b"The fox\n", timeout=60)
    assert (running.returncode, err) == (0, b"")
    (whole,) = answers(cascade, "Hello", max_tokens=700)
    interrupted = (first + out).decode()
    assert interrupted[:4] == whole[:4]
    assert not interrupted.startswith(whole)


def test_the_installed_command_says_it_too(cascade: graphcut.Cascade) -> None:
    result = command("generate", cascade.root, "--prompt", "The fox", "--max-tokens", 12, "-q")
    assert (result.code, result.out) == (0, continued(cascade, "The fox")[1] + "\n")
