"""`graphcut generate`: tokens on stdout as they come, how it went on stderr, and what it says when it can't."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import LAYERS, WIDTH, with_a_state_of_its_own, with_buffer, with_concat, with_lstm
from onnx import helper

from graphcut import Into, generate, open_cascade, split

from command_line import SCRIPT, Run, command, environment, llm, parts, run
from conftest import floats, model_of

__all__ = ["llm", "parts", "run"]

PROMPTS = [[1, 15, 27], [4, 5]]


@pytest.fixture(scope="module")
def expected(parts: Path) -> list[list[int]]:
    """What Python gets; test_decoding.py holds that against the whole model."""
    return generate(open_cascade(parts), PROMPTS, max_tokens=9).all()


def spaced(tokens: list[int]) -> str:
    return " ".join(map(str, tokens)) + "\n"


def test_the_tokens_of_one_prompt_are_one_line(run: Run, parts: Path, expected: list[list[int]]) -> None:
    result = run("generate", parts, "--prompt-ids", "1,15,27", "--max-tokens", 9)
    assert (result.code, result.out) == (0, spaced(expected[0]))
    lines = result.err.splitlines()
    rates = (
        r"9 tokens, the first after [\d.,]+ \S+, [\d.,]+ \S+ of these before parts could run, then [\d.,]+ a second; "
        r"the prompt of 3 tokens at [\d.,]+ a second; "
        r"a step took [\d.,]+ \S+ \+ [\d.,]+ \S+ in the parts, on average, the first included\."
    )
    assert re.fullmatch(rates, lines[0])
    assert [line.split()[:2] for line in lines[2:4]] == [["part-0.onnx", "9"], ["part-1.onnx", "9"]]


def test_several_prompts_have_a_line_each_in_their_order(run: Run, parts: Path, expected: list[list[int]]) -> None:
    stop = expected[1][1]
    ended = [row[: row.index(stop) + 1] if stop in row else row for row in expected]
    words = ("--prompt-ids", "1,15,27", "--prompt-ids", "4 5", "--max-tokens", 9, "--stop", stop, "--quiet")
    result = run("generate", parts, *words)
    assert (result.code, result.out, result.err) == (0, "".join(map(spaced, ended)), "")


def test_json_has_sequences_times_and_parts(run: Run, parts: Path, expected: list[list[int]]) -> None:
    result = run("generate", parts, "--prompt-ids", "1,15,27", "--prompt-ids", "4,5", "--max-tokens", 9, "--json")
    *lines, told = map(json.loads, result.out.splitlines())
    assert [[line["token"] for line in lines if line["sequence"] == i] for i in (0, 1)] == expected
    assert {frozenset(line) for line in lines} == {frozenset({"sequence", "token", "text"})}
    assert result.err == ""
    assert told["sequences"] == [
        {"prompt": prompt, "tokens": row, "text": None, "end": "max_tokens", "error": None}
        for prompt, row in zip(PROMPTS, expected, strict=True)
    ]
    # A trial of five steps, for the prompts have other lengths; each prompt; and eight steps of both.
    assert [(part["file"], part["steps"]) for part in told["parts"]] == [("part-0.onnx", 15), ("part-1.onnx", 15)]
    assert told["first_token_s"] > 0
    assert told["tokens_per_s"] > 0
    assert told["deaths"] == []


def test_workers_are_processes_if_asked_for(run: Run, parts: Path, expected: list[list[int]]) -> None:
    words = ("--prompt-ids", "1,15,27", "--max-tokens", 9, "--via", "processes", "--workers", 2, "-q")
    assert run("generate", parts, *words).out == spaced(expected[0])


def test_a_state_is_named_when_cutting(run: Run, tmp_path: Path) -> None:
    onnx.save(with_a_state_of_its_own(), tmp_path / "own.onnx")
    blind, told = tmp_path / "blind", tmp_path / "told"
    assert run("split", tmp_path / "own.onnx", "--num-splits", 1, "-o", blind).code == 0
    assert run("split", tmp_path / "own.onnx", "--num-splits", 2, "-o", told, "--state", "h=g").code == 0
    words = ("--prompt-ids", "3,1", "--max-tokens", 5, "-q")
    generated = run("generate", told, *words)
    assert generated.code == 0
    assert len(generated.out.split()) == 5
    message, hint = run("generate", blind, *words).error
    assert message.endswith("reads float32[batch,16] 'h', and it is not known what to feed there")
    assert hint == "feed it with --inputs; or, if an output becomes it, say so with --state of `graphcut split`"


def test_inputs_come_from_a_file(run: Run, tmp_path: Path) -> None:
    onnx.save(with_lstm(), tmp_path / "lstm.onnx")
    run("split", tmp_path / "lstm.onnx", "--num-splits", 2, "-o", tmp_path / "parts", "-q")
    hidden, cell = np.full((LAYERS, 1, WIDTH), 0.5, np.float32), np.ones((LAYERS, 1, WIDTH), np.float32)
    np.savez(tmp_path / "begin.npz", h0=hidden, c0=cell)
    words = ("--prompt-ids", "3,1", "--max-tokens", 6, "-q")
    result = run("generate", tmp_path / "parts", *words, "--inputs", tmp_path / "begin.npz")
    python = generate(open_cascade(tmp_path / "parts"), [[3, 1]], max_tokens=6, inputs={"h0": hidden, "c0": cell}).all()
    assert result.out == spaced(python[0])
    assert result.out != run("generate", tmp_path / "parts", *words).out


def test_a_random_prompt_is_in_the_vocabulary(run: Run, parts: Path) -> None:
    words = ("generate", parts, "--prompt-ids", "random", "--max-tokens", 2, "--json")
    result = run(*words, "--seed", 5)
    (sequence,) = json.loads(result.out.splitlines()[-1])["sequences"]
    assert result.err == f"prompt generated with --seed 5: {','.join(map(str, sequence['prompt']))}\n"
    assert len(sequence["prompt"]) == 8
    assert set(sequence["prompt"]) <= set(range(32))
    assert json.loads(run(*words, "--seed", 5).out.splitlines()[-1])["sequences"] == [sequence]


def test_random_inputs_are_those_that_do_not_follow_from_tokens(run: Run, tmp_path: Path) -> None:
    onnx.save(with_lstm(), tmp_path / "lstm.onnx")
    run("split", tmp_path / "lstm.onnx", "--num-splits", 2, "-o", tmp_path / "parts", "-q")
    words = ("generate", tmp_path / "parts", "--prompt-ids", "3,1", "--max-tokens", 3)
    result = run(*words, "--inputs", "random")
    assert result.code == 0
    assert result.err.startswith("inputs generated with --seed 0: none\n"), "all but the tokens are states"
    assert result.out == run(*words).out


def test_a_full_buffer_ends_a_sequence_with_a_message(run: Run, tmp_path: Path) -> None:
    onnx.save(with_buffer(), tmp_path / "buffer.onnx")
    run("split", tmp_path / "buffer.onnx", "--num-splits", 2, "-o", tmp_path / "parts", "-q")
    result = run("generate", tmp_path / "parts", "--prompt-ids", "3,1")
    assert len(result.out.split()) == 24 - 2 + 1
    assert "1 sequence ended because the model has no room for more tokens." in result.err


def test_a_random_prompt_needs_an_input_for_tokens(run: Run) -> None:
    onnx.save(
        model_of([helper.make_node("Relu", ["x"], ["logits"])], [floats("x", 1, "n")], [floats("logits", 1, "n")]),
        "m.onnx",
    )
    assert run("split", "m.onnx", "--num-splits", 1, "-q").code == 0
    refused = run("generate", "m.parts", "--prompt-ids", "random")
    assert refused.error == ("no input of the model is known to read tokens", "give token ids and input files")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prompt-ids", "1,x"), "--prompt-ids '1,x' is not a comma-separated list of token ids"),
        (("--prompt-ids", ""), "--prompt-ids '' is not a comma-separated list of token ids"),
        (("--prompt-ids", "1,4294967297"), "prompt 0 has 4294967297, which is not a token id"),
        (("--prompt-ids", "1", "--stop", "-2"), "--stop '-2' is not a comma-separated list of token ids"),
        (
            ("--prompt-ids", "1", "--workers", "9"),
            "9 workers can't share 2 parts: the states of a sequence stay with a part",
        ),
    ],
)
def test_wrong_values_are_misuse(run: Run, parts: Path, words: tuple[str, ...], message: str) -> None:
    result = run("generate", parts, *words)
    assert result.code == 2
    assert result.error[0] == message


def test_input_ids_can_not_be_given_as_inputs(run: Run, parts: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input_ids=np.array([[1]], np.int64))
    result = run("generate", parts, "--prompt-ids", "1", "--inputs", tmp_path / "x.npz")
    assert (result.code, result.error[0]) == (2, "'input_ids' is among the inputs, but prompts are fed there")


def test_a_token_outside_the_vocabulary_is_named(run: Run, parts: Path) -> None:
    result = run("generate", parts, "--prompt-ids", "99999")
    assert (result.code, result.error[0]) == (2, "token id 99999 of prompt 0 is outside the vocabulary (32)")


def test_a_sequence_that_fails_ends_its_line(run: Run, tmp_path: Path) -> None:
    onnx.save(with_concat(), tmp_path / "m.onnx")  # a model of 64 positions
    cascade = split(tmp_path / "m.onnx", Into(1))
    words = ("generate", cascade.root, "--max-tokens", 9, "--quiet", "--prompt-ids", ",".join(["3"] * 62))
    result = run(*words)
    assert (result.code, result.out.count("\n"), len(result.out.split())) == (3, 1, 3)
    assert result.out.endswith("\n")


def test_of_several_sequences_one_that_fails_ends_alone(run: Run, parts: Path, expected: list[list[int]]) -> None:
    words = ("--prompt-ids", "1,15,27", "--prompt-ids", "99999,1", "--prompt-ids", "4,5", "--max-tokens", 9)
    result = run("generate", parts, *words, "--quiet")
    assert (result.code, result.out) == (3, f"{spaced(expected[0])}\n{spaced(expected[1])}")
    why = "token id 99999 of prompt 1 is outside the vocabulary (32)"
    assert result.err == f"{why}\n1 of 3 sequences failed\n"
    told = json.loads(run("generate", parts, *words, "--json").out.splitlines()[-1])["sequences"]
    assert [(one["tokens"], one["end"], one["error"]) for one in told] == [
        (expected[0], "max_tokens", None),
        ([], "failed", why),
        (expected[1], "max_tokens", None),
    ]


def test_memory_is_limited_as_in_a_run(run: Run, parts: Path, expected: list[list[int]]) -> None:
    words = ("generate", parts, "--prompt-ids", "1,15,27", "--max-tokens", 9)
    refused = run(*words, "--memory-limit", "1MiB")
    assert refused.code == 3
    assert re.fullmatch(
        r"this run is predicted to need [\d.]+ [MG]iB, more than the memory limit of 1 MiB", refused.error[0]
    )
    result = run(*words, "--memory-limit", "100GB")
    assert (result.code, result.out) == (0, spaced(expected[0]))
    lines = result.err.splitlines()
    assert re.fullmatch(r"predicted peak about [\d.]+ [MG]B of 100 GB: 2 parts, all stay loaded", lines[0])
    assert re.fullmatch(r"measured peak [\d.]+ [MG]B \(resident pages\)", lines[1])
    asked = [
        sys.executable,
        "-m",
        "graphcut",
        *map(str, words),
        "--memory-limit",
        "200MB",
    ]  # with its own modules alone
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stderr
    predicted, measured = (float(number) for number in re.findall(r"peak (?:about )?([\d.]+) MB", said))
    assert measured <= predicted
    message = "a memory limit is for one process, without other workers"
    assert run(*words, "--memory-limit", "1GB", "--via", "processes").error[0] == message
    assert run(*words, "--exact").code == 2


def test_a_cluster_is_accepted_where_there_is_one(run: Run, parts: Path) -> None:
    for words in ((), ("--via", "processes")):
        refused = run("generate", parts, "--prompt-ids", "1", "--insecure", *words)
        assert (refused.code, refused.error[0]) == (2, "--insecure applies to --via ray")


def test_all_sequences_may_fail(run: Run, parts: Path) -> None:
    words = ("--prompt-ids", "4294967297", "--prompt-ids", "99999", "--max-tokens", 9)
    result = run("generate", parts, *words)
    assert (result.code, result.out) == (3, "\n\n")
    assert result.err.splitlines()[-1] == "2 of 2 sequences failed"
    told = json.loads(run("generate", parts, *words, "--json").out.splitlines()[-1])
    assert (told["first_token_s"], told["tokens_per_s"]) == (None, None)


def test_a_closed_pipe_ends_generating_silently(parts: Path) -> None:
    words = f"{SCRIPT} generate {parts} --prompt-ids 1,2 --max-tokens 500 -q | head -c 4"
    done = subprocess.run(["/bin/sh", "-c", words], capture_output=True, check=False, timeout=60, env=environment())
    assert (len(done.stdout), done.stderr) == (4, b"")


@pytest.mark.parametrize("is_one_place", [True, False])
def test_a_note_between_tokens_has_a_line_of_its_own(*, is_one_place: bool) -> None:
    """Where both are shown in one place; stdout alone is as it is without the note."""
    code = """
from graphcut.cli.generated import put
from graphcut.cli.output import workers_notes
note = workers_notes()
put("83 83")
note("edge does not answer", None)
note("edge answers again", None)
put(" 83")
put("\\n")
note("edge runs again", None)
"""
    stderr = subprocess.STDOUT if is_one_place else subprocess.PIPE
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, check=True, text=True)
    if is_one_place:
        assert done.stdout == "83 83\nedge does not answer\nedge answers again\n 83\nedge runs again\n"
    else:
        assert done.stdout == "83 83 83\n"
        assert done.stderr == "edge does not answer\nedge answers again\nedge runs again\n"


def test_ctrl_c_leaves_no_workers(parts: Path) -> None:
    words = [str(SCRIPT), "generate", str(parts), "--prompt-ids", "1,2", "--max-tokens", "100000", "--via", "processes"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.read(3)
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert err.decode().splitlines()[-1] == "error: interrupted"
    time.sleep(0.2)
    with pytest.raises(ProcessLookupError):
        os.killpg(running.pid, 0)


def test_the_installed_command_generates(parts: Path, expected: list[list[int]]) -> None:
    result = command("generate", parts, "--prompt-ids", "1,15,27", "--max-tokens", 9)
    assert (result.code, result.out) == (0, spaced(expected[0]))


def test_proposed_tokens_change_nothing(run: Run, parts: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    words = ("generate", parts, "--prompt-ids", "1,15,27", "--max-tokens", 9, "-q", "--draft")
    for draft in ("lookup", parts):
        assert run(*words, draft).out == spaced(expected[0])
    missing = run(*words, "nothing")
    assert (missing.code, missing.error[0]) == (3, "there is no cascade at nothing")
    (model := tmp_path / "small.onnx").write_bytes(b"")
    whole = run(*words, model)
    assert (whole.code, whole.error[0]) == (2, f"{model} is a model, not a cascade")
