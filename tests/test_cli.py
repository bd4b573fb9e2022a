"""The command line, over the fake backend; what it prints is what a user gets."""

from __future__ import annotations

import json
import sys

import pytest

import branchwise.api
from branchwise.backends.fake import FakeBackend
from branchwise.cli.main import main

SCHEMA = {
    "questions": {
        "urgent": {"type": "boolean", "text": "Is it urgent?"},
        "category": {"type": "choice", "text": "What is it about?", "options": ["billing", "technical"]},
    }
}


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command; gives (status, standard output, standard error)."""

    def opened(model, *, backend, device, dtype):
        return FakeBackend()

    monkeypatch.setattr(branchwise.api, "open_backend", opened)

    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["branchwise", *arguments])
        if stdin:
            import io

            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        printed = capsys.readouterr()
        return int(status), printed.out, printed.err

    return call


@pytest.fixture
def schema_file(tmp_path):
    path = tmp_path / "ticket.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def context_file(tmp_path):
    path = tmp_path / "ticket.txt"
    path.write_text("I was charged twice.")
    return str(path)


def test_decide_prints_a_table(run, schema_file, context_file):
    status, out, _ = run("decide", "--schema", schema_file, "--context", context_file)
    assert status == 0
    for text in ("I was charged twice.", "urgent", "category", "legal mass", "fake"):
        assert text in out


def test_json_output_is_json_and_nothing_else(run, schema_file, context_file):
    status, out, _ = run("decide", "--schema", schema_file, "--context", context_file, "--json")
    assert status == 0
    found = json.loads(out)
    assert set(found["value"]) == {"urgent", "category"}
    assert found["value"]["urgent"] in (True, False)
    assert found["provenance"]["layout"] == "shared"


def test_several_contexts_become_a_list_and_standard_input_is_one(run, schema_file, context_file, tmp_path):
    data = tmp_path / "data.json"
    data.write_text('{"message": "hello"}')
    arguments = ["--context", context_file, "--context", str(data), "--context", "-"]
    status, out, _ = run("decide", "--schema", schema_file, *arguments, "--json", stdin="typed")
    assert status == 0
    assert len(json.loads(out)) == 3


def test_an_item_that_fails_is_reported_beside_the_others(run, schema_file, context_file, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text(" ")
    arguments = ["--context", context_file, "--context", str(empty)]
    status, out, _ = run("decide", "--schema", schema_file, *arguments, "--json")
    assert status == 1
    good, bad = json.loads(out)
    assert "value" in good
    assert bad["error"]["type"] == "EmptyContextError"
    status, out, _ = run("decide", "--schema", schema_file, *arguments)
    assert status == 1
    assert "EmptyContextError" in out


def test_a_preset_decides_about_its_own_contexts(run):
    status, out, _ = run("decide", "--preset", "support_triage", "--json", "--layout", "isolated")
    assert status == 0
    found = json.loads(out)
    assert len(found) >= 3
    assert found[0]["provenance"]["layout"] == "isolated"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["decide"], 2, "--preset"),
        (["decide", "--preset", "support_triage", "--schema", "x.json"], 2, "--preset"),
        (["decide", "--preset", "suport_triage"], 1, "support_triage"),
        (["decide", "--schema", "nowhere.json", "--context", "-"], 1, "nowhere.json"),
        (["decide", "--preset", "support_triage", "--temperature", "0"], 1, "temperature"),
        (["decide", "--preset", "support_triage", "--layout", "odd"], 2, "isolated"),
        (["models", "info", "no-such-model"], 1, "no-such-model"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_errors_are_one_message_and_a_status(run, arguments, status, message):
    found, _, err = run(*arguments, stdin="text")
    assert found == status
    assert message in err
    assert "Traceback" not in err


def test_a_broken_file_is_named(run, tmp_path, context_file):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    status, _, err = run("decide", "--schema", str(broken), "--context", context_file)
    assert status == 1
    assert "broken.json is not JSON" in err
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    status, _, err = run("decide", "--schema", str(broken), "--context", str(binary))
    assert status == 1
    assert "binary.txt is not UTF-8" in err


def test_models_are_listed_and_described(run, monkeypatch, tmp_path):
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path))
    status, out, _ = run("models", "list", "--json")
    assert status == 0
    listed = {entry["alias"]: entry for entry in json.loads(out)}
    assert listed["smollm2-135m"]["licence"] == "Apache-2.0"
    assert all(entry["memory_float32"] == 4 * entry["parameters"] for entry in listed.values())
    status, out, _ = run("models", "list")
    assert "smollm2-135m" in out
    status, out, _ = run("models", "info", "qwen2.5-7b")
    assert status == 0
    assert "Qwen/Qwen2.5-7B-Instruct" in out


def test_doctor_says_what_can_be_used(run):
    status, out, _ = run("doctor", "--json")
    assert status == 0
    found = json.loads(out)
    assert set(found["backends"]) >= {"torch", "reference"}
    assert found["packages"]["numpy"]
    status, out, _ = run("doctor")
    assert status == 0
    assert "backends" in out
