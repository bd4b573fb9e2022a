"""Packed against classic against token-by-token JSON: same model, dtype, threads, one run.

    python benchmarks/core.py --dtype float32 --threads 2 --contexts 1 8 64 --repeat 5

Times are medians over --repeat runs of all contexts; generation is run less often (the column
"runs" says how often), since each run is an average over its contexts already. The packed
strategy keeps its schema prefix between calls, as it does for users; the classic strategy and
generation compute their whole prompt for every context, as they do. The GEMM limit is unique
tokens × 2 × non-embedding parameters ÷ the measured rate of the model's own matrix shapes.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from branchwise import Decider, Decision
from branchwise.engine.engine import Engine
from branchwise.prompt import fenced
from branchwise.schema.questions import (
    BooleanQuestion,
    ChoiceQuestion,
    Option,
    Question,
    Schema,
    ScoreQuestion,
)
from generate_json import generate_json

CONTEXT_TOKENS = 400
GENERATED_AT_MOST = 8  # contexts: generation treats each by itself, so 8 say what 64 would

SENTENCES = (
    "I was charged twice for the same order and the second charge has not been returned.",
    "Since the last update the application closes itself whenever I open the settings page.",
    "Your colleague promised a call back on Tuesday, and nobody has called so far.",
    "Apart from that I like the product and have recommended it to two friends.",
    "The confirmation mail arrived four days late, with the wrong name on it.",
    "Please tell me whether the refund goes to my card or to my account balance.",
    "We are a team of twelve, and three of us can no longer sign in since Monday morning.",
    "The invoice for March lists seats that we cancelled in January.",
)


def options(*texts: str) -> tuple[Option, ...]:
    return tuple(Option(text, text) for text in texts)


def ten_questions() -> Schema:
    questions: list[Question] = [
        BooleanQuestion("urgent", "Does the customer need an answer today?"),
        BooleanQuestion("refund", "Does the customer ask for money back?"),
        BooleanQuestion("angry", "Is the customer angry?"),
        BooleanQuestion("churn", "Does the customer threaten to leave?"),
        ChoiceQuestion("category", "What is it about?", options("billing", "technical", "account", "other")),
        ChoiceQuestion("team", "Who should answer?", options("finance", "engineering", "support", "sales")),
        ChoiceQuestion("channel", "How did it arrive?", options("email", "chat", "phone")),
        ChoiceQuestion("product", "Which product is meant?", options("mobile app", "web app", "card")),
        ScoreQuestion("severity", "How bad is it?", options("cosmetic", "annoying", "blocking")),
        ScoreQuestion("clarity", "How clear is the text?", options("unclear", "mostly clear", "clear")),
    ]
    return Schema(tuple(questions))


def contexts_of(count: int, tokenizer: object) -> list[str]:
    """Different texts, each of about CONTEXT_TOKENS tokens."""
    made = []
    for number in range(count):
        words = [f"Ticket {number}."]
        place = number
        while len(tokenizer.encode(" ".join(words))) < CONTEXT_TOKENS - 10:
            words.append(SENTENCES[place % len(SENTENCES)])
            place += 1 + number % 3
        made.append(" ".join(words))
    return made


@dataclass
class Measured:
    name: str
    contexts: int
    runs: int
    seconds: float  # median, whole run
    computed: int
    unique: int
    held: int  # peak bytes of keys, values and logits, as counted
    resident: int  # peak growth of the process

    @property
    def per_context(self) -> float:
        return 1000 * self.seconds / self.contexts


class ResidentPeak:
    """The most the process grew while the block ran, sampled every 2 ms."""

    def __enter__(self) -> ResidentPeak:
        gc.collect()
        self.start = self.peak = _resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, _resident())

    @property
    def growth(self) -> int:
        return self.peak - self.start


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def median_seconds(run: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def gemm_rate(model: torch.nn.Module, repeat: int) -> float:
    """FLOP/s of the model's own linear layers at 512 rows: the median over repeats."""
    layers = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "lm_head" not in n]
    some = layers[:14]
    inputs = [torch.randn(512, layer.in_features, dtype=layer.weight.dtype) for layer in some]
    flop = sum(2 * 512 * layer.in_features * layer.out_features for layer in some)

    @torch.inference_mode()
    def run() -> None:
        for layer, x in zip(some, inputs, strict=True):
            layer(x)

    run()
    return flop / median_seconds(run, repeat)


def measure_strategy(
    decider: Decider, name: str, schema: Schema, contexts: list[str], repeat: int
) -> Measured:
    decider.decide(schema, "a warm-up")
    decisions: list[Decision[Any]] = []

    def run() -> None:
        decisions[:] = decider.decide_many(schema, contexts)

    with ResidentPeak() as resident:
        seconds = median_seconds(run, repeat)
    groups = {(d.telemetry.group_seconds, d.telemetry.tokens_computed): d.telemetry for d in decisions}
    return Measured(
        name=name,
        contexts=len(contexts),
        runs=repeat,
        seconds=seconds,
        computed=sum(t.tokens_computed for t in groups.values()),
        unique=sum(t.tokens_unique for t in groups.values()),
        held=max(t.peak_bytes for t in groups.values()),
        resident=resident.growth,
    )


def measure_generation(engine: Engine, schema: Schema, contexts: list[str], repeat: int) -> Measured:
    compiled = engine.compile(schema)
    backend = engine.backend
    prompts = [
        [*compiled.prefix_ids.tolist(), *backend.tokenizer.encode(fenced(c)), *compiled.suffix_ids.tolist()]
        for c in contexts
    ]

    def run() -> int:
        return sum(
            len(p) + generate_json(backend.loaded.model, backend.tokenizer, p, schema)[1] for p in prompts
        )

    tokens = 0

    def counted() -> None:
        nonlocal tokens
        tokens = run()

    with ResidentPeak() as resident:
        seconds = median_seconds(counted, repeat)
    return Measured(
        name="token by token",
        contexts=len(contexts),
        runs=repeat,
        seconds=seconds,
        computed=tokens,
        unique=0,
        held=0,
        resident=resident.growth,
    )


def show(rows: list[Measured], rate: float, parameters: int, title: str) -> None:
    table = Table(title=title)
    columns = (
        "contexts",
        "way",
        "runs",
        "ms/context",
        "× packed",
        "tokens",
        "unique",
        "held MB",
        "grew MB",
        "of limit",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        packed = next(r for r in rows if r.name == "packed" and r.contexts == row.contexts)
        limit = row.unique * 2 * parameters / rate
        table.add_row(
            str(row.contexts),
            row.name,
            str(row.runs),
            f"{row.per_context:.0f}",
            f"{row.seconds / packed.seconds:.2f}",
            f"{row.computed:,}",
            f"{row.unique:,}" if row.unique else "",
            f"{row.held / 1e6:.0f}" if row.held else "",
            f"{row.resident / 1e6:.0f}",
            f"{limit / row.seconds:.2f}" if row.name == "packed" else "",
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--contexts", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-generation", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    packed = Decider(given.model, dtype=given.dtype)
    backend = packed.backend
    classic = Decider(backend, strategy="classic")
    schema = ten_questions()
    rate = gemm_rate(backend.loaded.model, max(given.repeat, 5))
    embedding = backend.loaded.model.get_input_embeddings().weight.numel()
    parameters = backend.identity.parameters - embedding
    identity = backend.identity
    machine = platform.processor() or platform.machine()
    title = (
        f"{identity.name} {identity.dtype}, {given.threads} threads, {machine}, "
        f"GEMM {rate / 1e9:.0f} GFLOP/s, medians"
    )
    for count in given.contexts:
        contexts = contexts_of(count, backend.tokenizer)
        rows = [
            measure_strategy(packed, "packed", schema, contexts, given.repeat),
            measure_strategy(classic, "classic", schema, contexts, given.repeat),
        ]
        if not given.no_generation and count <= GENERATED_AT_MOST:
            runs = max(1, given.repeat // count)
            rows.append(measure_generation(packed._engine, schema, contexts, runs))
        show(rows, rate, parameters, title)  # at once: a run with many contexts takes minutes


if __name__ == "__main__":
    main()
