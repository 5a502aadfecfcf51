"""One worker's continuous batching in simulated time, a step at a time.

The same model as :mod:`dolphin_sim.engine.worker`, with the same step law: decodes first, then prefill chunks, first
come first served, in what is left of the step's token budget. That one is compiled, works on arrays for a whole cluster
and joins decode steps to runs; this one is plain Python for a single worker, says when each token comes, and lets
requests be aborted and their KV cache be kept for another worker. The tests hold the two equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from dolphin_sim.emulator.memory import BlockKey, Holding, KvMemory
from dolphin_sim.engine import step_time
from dolphin_sim.engine.state import Settings

# As plain functions: compiling them would take longer than a worker takes to start.
attention_pairs = getattr(step_time.attention_pairs, "py_func", step_time.attention_pairs)
decode_attention_s = getattr(step_time.decode_attention_s, "py_func", step_time.decode_attention_s)

IDLE_S = float("inf")


class Phase(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    ROOMLESS = "roomless"
    """Its KV cache is on another worker and has no room here yet."""
    RECEIVING = "receiving"
    READY = "ready"
    """Its KV cache has arrived."""
    DECODING = "decoding"
    KEPT = "kept"
    """Ended, but its KV cache stays for another worker."""
    ENDED = "ended"


class Generation:
    """One prompt and its answer on one worker.

    Args:
        prompt_tokens: at least 1.
        output_tokens: at least 1; the answer ends there.
        holding: its memory.
        keeps_kv: whether its KV cache stays when it has ended, until :meth:`Batch.release_kept`.
        changed: called after each step that adds a token, and when it gets room for a KV cache from elsewhere.
    """

    __slots__ = (
        "arrival_s",
        "changed",
        "chunk_tokens",
        "computed_tokens",
        "finish_s",
        "first_token_s",
        "generated_tokens",
        "holding",
        "keeps_kv",
        "last_token_s",
        "output_tokens",
        "phase",
        "preemptions",
        "prompt_tokens",
        "reused_tokens",
        "scheduled_s",
        "target_tokens",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        holding: Holding,
        *,
        keeps_kv: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.holding = holding
        self.keeps_kv = keeps_kv
        self.changed = changed
        self.phase = Phase.WAITING
        self.target_tokens = prompt_tokens
        self.computed_tokens = 0
        self.chunk_tokens = 0
        self.generated_tokens = 0
        self.reused_tokens = 0
        """Prompt tokens that were found here."""
        self.preemptions = 0
        self.arrival_s = IDLE_S
        self.scheduled_s = IDLE_S
        self.first_token_s = IDLE_S
        self.last_token_s = IDLE_S
        self.finish_s = IDLE_S

    @property
    def is_over(self) -> bool:
        """Whether no more tokens come."""
        return self.phase in (Phase.KEPT, Phase.ENDED)


class Batch:
    """A worker. Calls come in the order of their times, and :meth:`advance` before each.

    Args:
        settings: of the profile.
        step_tokens: most new tokens in a step.
        memory: the worker's.
    """

    def __init__(self, settings: Settings, *, step_tokens: int, memory: KvMemory) -> None:
        self._settings = settings
        self._step_tokens = step_tokens
        self.memory = memory
        self._waiting: deque[Generation] = deque()
        self._roomless: deque[Generation] = deque()
        self._ready: deque[Generation] = deque()
        self._prefilling: list[Generation] = []
        self._running: list[Generation] = []
        self.slowness = 1.0
        """Factor on the time of every step that begins."""
        self.step_end_s = IDLE_S
        """When something happens next; infinite when idle."""
        self.preemptions = 0
        self.receiving_count = 0
        """Sequences that have room for a KV cache that is on its way."""

    @property
    def running_count(self) -> int:
        """Sequences that have a place in the batch."""
        return len(self._running) + len(self._prefilling)

    @property
    def waiting_count(self) -> int:
        """Sequences that wait for a place, for room, or for their KV cache."""
        return len(self._waiting) + len(self._ready) + len(self._roomless)

    def advance(self, until_s: float) -> None:
        """Let all steps end that end until then."""
        while self.step_end_s <= until_s:
            self._end_step()

    def submit(self, generation: Generation, now_s: float) -> None:
        """Add a sequence whose prompt is to be computed here."""
        generation.arrival_s = min(generation.arrival_s, now_s)
        generation.phase = Phase.WAITING
        self._waiting.append(generation)
        self._wake(now_s)

    def expect(self, generation: Generation, now_s: float) -> None:
        """Add a sequence whose KV cache is elsewhere. Once it has room, its phase is RECEIVING and ``computed_tokens``
        says how much of it is here already; then :meth:`receive` is due."""
        generation.arrival_s = min(generation.arrival_s, now_s)
        generation.phase = Phase.ROOMLESS
        self._roomless.append(generation)
        self._give_room()

    def receive(self, generation: Generation, now_s: float) -> None:
        """Let a sequence start to decode whose KV cache has arrived."""
        generation.phase = Phase.READY
        self.receiving_count -= 1
        generation.computed_tokens = generation.prompt_tokens
        self.memory.share(generation.holding, generation.prompt_tokens)
        self._ready.append(generation)
        self._wake(now_s)

    def release_kept(self, generation: Generation, now_s: float) -> None:
        """Free the KV cache of a sequence that has ended."""
        if generation.phase is Phase.KEPT:
            self._end(generation)
            self._memory_freed(now_s)

    def abort(self, generation: Generation, now_s: float) -> None:
        """End a sequence wherever it stands and free its memory. One that has ended stays as it is."""
        if generation.is_over:
            return
        if generation.phase is Phase.RECEIVING:
            self.receiving_count -= 1
        for place in (self._waiting, self._roomless, self._ready, self._prefilling, self._running):
            if generation in place:
                place.remove(generation)
        generation.finish_s = now_s
        self._end(generation)
        self._memory_freed(now_s)

    def _end(self, generation: Generation) -> None:
        self.memory.release(generation.holding)
        generation.phase = Phase.ENDED

    def _memory_freed(self, now_s: float) -> None:
        self._give_room()
        self._wake(now_s)

    def _wake(self, now_s: float) -> None:
        if self.step_end_s == IDLE_S:
            self._begin_step(now_s)

    def _begin_step(self, now_s: float) -> None:
        settings = self._settings
        while True:
            while self._ready and self.running_count < settings.max_running:
                self._join(self._ready.popleft(), now_s)
            preempted = self._make_room()
            # When all had to give way, others may take their places: with none running nothing would wake the worker.
            if not preempted or self._running:
                break
        decodes = len(self._running)
        for generation in self._running:
            self.memory.take(generation.holding, 1)
        budget = max(self._step_tokens - decodes, 0)
        prefill_tokens, pairs, load_s = self._schedule_prefills(budget, now_s, admitting=not preempted)
        if prefill_tokens == 0 and decodes == 0:
            self.step_end_s = IDLE_S
            return
        context_tokens = sum(each.prompt_tokens + each.generated_tokens for each in self._running)
        step_s = (
            float(settings.step_s[prefill_tokens + decodes])
            + settings.attention_s_per_pair * pairs
            + decode_attention_s(settings, decodes, context_tokens)
            + load_s
        )
        self.step_end_s = now_s + step_s * self.slowness

    def _end_step(self) -> None:
        now_s = self.step_end_s
        self.step_end_s = IDLE_S
        told = self._running
        self._running = [each for each in told if not self._add_token(each, now_s)]
        prefilling = self._prefilling
        self._prefilling = []
        for generation in prefilling:
            generation.computed_tokens += generation.chunk_tokens
            generation.chunk_tokens = 0
            self.memory.share(generation.holding, generation.computed_tokens)
            if generation.computed_tokens < generation.target_tokens:
                self._prefilling.append(generation)
            # The step that computes the last prompt token also yields the next token of the answer.
            elif not self._add_token(generation, now_s):
                self._join(generation, now_s)
        self._give_room()
        self._begin_step(now_s)
        for generation in (*told, *prefilling):
            generation.changed()

    def _add_token(self, generation: Generation, now_s: float) -> bool:
        """Tell whether it was the last."""
        generation.generated_tokens += 1
        generation.last_token_s = now_s
        if generation.first_token_s == IDLE_S:
            generation.first_token_s = now_s
        if generation.generated_tokens < generation.output_tokens:
            return False
        generation.finish_s = now_s
        if generation.keeps_kv:
            generation.phase = Phase.KEPT
        else:
            self._end(generation)
        return True

    def _join(self, generation: Generation, now_s: float) -> None:
        generation.phase = Phase.DECODING
        generation.scheduled_s = min(generation.scheduled_s, now_s)
        self._running.append(generation)

    def _give_room(self) -> None:
        """First come, first served, until one has to wait."""
        while self._roomless:
            generation = self._roomless[0]
            admitted = self.memory.admit(generation.holding, generation.target_tokens)
            if admitted is None:
                return
            self._roomless.popleft()
            generation.computed_tokens = generation.reused_tokens = admitted[0]
            generation.phase = Phase.RECEIVING
            self.receiving_count += 1
            generation.changed()

    def _make_room(self) -> bool:
        """Preempt the latest until every running sequence can grow by a token; tell if any was.

        As in vLLM, a preempted sequence gives up its memory, goes back to the head of the queue, and is computed again.
        """
        preempted = False
        while self.memory.free_tokens < len(self._running):
            generation = (self._prefilling or self._running).pop()
            self.memory.release(generation.holding)
            generation.preemptions += 1
            self.preemptions += 1
            generation.phase = Phase.WAITING
            generation.target_tokens = generation.prompt_tokens + generation.generated_tokens
            generation.computed_tokens = generation.chunk_tokens = 0
            self._waiting.appendleft(generation)
            preempted = True
        return preempted

    def _schedule_prefills(self, budget: int, now_s: float, *, admitting: bool) -> tuple[int, float, float]:
        """Return the tokens given out, their attention pairs, and the seconds of reads from the host tier."""
        given = 0
        pairs = 0.0
        load_s = 0.0
        for generation in self._prefilling:
            given += self._give_chunk(generation, budget - given)
            pairs += attention_pairs(float(generation.chunk_tokens), float(generation.computed_tokens))
        while admitting and given < budget and self._waiting and self.running_count < self._settings.max_running:
            generation = self._waiting[0]
            # The cache is looked up now, not when the request came: what was computed meanwhile counts.
            admitted = self.memory.admit(generation.holding, generation.target_tokens)
            if admitted is None:
                break
            self._waiting.popleft()
            generation.phase = Phase.PREFILLING
            generation.scheduled_s = min(generation.scheduled_s, now_s)
            generation.computed_tokens = admitted[0]
            generation.reused_tokens = min(admitted[0], generation.prompt_tokens)
            given += self._give_chunk(generation, budget - given)
            pairs += attention_pairs(float(generation.chunk_tokens), float(generation.computed_tokens))
            load_s += admitted[1]
            self._prefilling.append(generation)
        return given, pairs, load_s

    def _give_chunk(self, generation: Generation, budget: int) -> int:
        generation.chunk_tokens = min(budget, generation.target_tokens - generation.computed_tokens)
        return generation.chunk_tokens


def new_generation(
    prompt: Sequence[int],
    blocks: Sequence[BlockKey],
    output_tokens: int,
    *,
    keeps_kv: bool = False,
    changed: Callable[[], None] = lambda: None,
) -> Generation:
    """Return a sequence for a prompt of tokens and the keys of its complete blocks."""
    return Generation(len(prompt), output_tokens, Holding(blocks, prompt), keeps_kv=keeps_kv, changed=changed)
