"""An emulated engine without its HTTP: calls in, runs out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from functools import partial
from typing import Any

from dolphin_router.contract import Split
from dolphin_sim.emulator.answers import Answer, prompt_digest
from dolphin_sim.emulator.batch import Batch, Phase, new_generation
from dolphin_sim.emulator.borrower import Borrower, KvSource
from dolphin_sim.emulator.call import Call, Choice, Length, Run, answer_length
from dolphin_sim.emulator.connectors import Parts, make_connector
from dolphin_sim.emulator.errors import KvLoadError
from dolphin_sim.emulator.faults import Faults
from dolphin_sim.emulator.kv_events import KvEventPublisher
from dolphin_sim.emulator.ledger import Ledger
from dolphin_sim.emulator.lender import Lender
from dolphin_sim.emulator.memory import KvMemory, block_keys
from dolphin_sim.emulator.metrics import EngineMetrics
from dolphin_sim.emulator.options import WorkerOptions
from dolphin_sim.emulator.pacer import Pacer
from dolphin_sim.emulator.request_body import GenerationBody
from dolphin_sim.emulator.side_channel import SideChannel
from dolphin_sim.hardware.law import engine_settings


class EmulatedEngine:
    """One worker. To be made inside a running event loop."""

    def __init__(self, options: WorkerOptions, faults: Faults) -> None:
        self.options = options
        self.faults = faults
        self.engine_id = str(uuid.uuid4())
        settings = engine_settings(options.profile, Split(prefill=1, decode=1), block_tokens=options.block_tokens)
        self.kv_events = None if options.kv_events is None else KvEventPublisher(options, options.kv_events)
        self.memory = KvMemory(settings, self.kv_events)
        self.batch = Batch(settings, step_tokens=options.step_tokens, memory=self.memory)
        self.pacer = Pacer(self.batch, time_scale=options.time_scale)
        self.ledger = Ledger()
        self.lender = Lender(
            self.pacer,
            self.ledger,
            engine_id=self.engine_id,
            block_tokens=options.block_tokens,
            lease_s=options.lease_s,
        )
        self.side_channel = SideChannel(self.lender)
        self.metrics = EngineMetrics(self)
        self._borrower = Borrower(self.pacer, settings, self.ledger, self.metrics.observe_transfer)
        self.runs: set[Run] = set()
        self.connector = make_connector(
            options.engine,
            Parts(options, self.engine_id, self.pacer, self.lender, self.side_channel, self.runs),
        )
        self._background: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the ports for other workers."""
        port = self.options.side_channel_port
        if self.options.engine == "sglang":
            port = port or self.options.bootstrap_port
        await self.side_channel.start(self.options.host, port)
        await self.connector.start()
        if self.kv_events is not None:
            await self.kv_events.start()

    async def stop(self) -> None:
        """Close them and let nothing more happen."""
        for task in self._background:
            task.cancel()
        await self.connector.stop()
        await self.side_channel.stop()
        if self.kv_events is not None:
            await self.kv_events.stop()
        self.lender.stop()
        self.pacer.stop()

    def apply_faults(self) -> None:
        """Take notice of faults that were set or cleared."""
        self.batch.slowness = self.faults.value("slow", 1.0)
        if self.faults.is_set("drop-kv"):
            self.lender.end_all("dropped")

    def start_run(self, call: Call) -> Run:
        """Begin to answer a call.

        Raises:
            ApiError: the protocol does not allow it.
        """
        self.connector.check(call)
        run = Run(call)
        self.runs.add(run)
        keys = [block_keys(prompt, self.options.block_tokens, root=call.cache_root) for prompt in call.prompts]
        for prompt_index, prompt in enumerate(call.prompts):
            digest = prompt_digest(prompt)
            for number in range(call.body.choices):
                answer = Answer(digest, number)
                length = self._length(call, prompt, digest, answer)
                index = prompt_index * call.body.choices + number
                choice = Choice(
                    run, index=index, prompt_index=prompt_index, digest=digest, answer=answer, length=length
                )
                run.choices.append(choice)
                choice.generation = new_generation(
                    prompt,
                    keys[prompt_index],
                    length.tokens,
                    keeps_kv=self.connector.keeps_kv(call),
                    changed=partial(self._changed, choice),
                )
        run.is_remote = self.connector.is_remote(call)
        if run.is_remote:
            run.tasks.append(asyncio.create_task(self._run_remotely(run)))
        else:
            for choice in run.choices:
                self._submit(choice)
        return run

    def abort(self, run: Run) -> None:
        """Stop a run of which nothing more is wanted, and free its memory."""
        if run.is_aborted:
            return
        run.is_aborted = True
        self.runs.discard(run)
        for task in run.tasks:
            task.cancel()
        if run.is_remote and not run.has_begun_fetching:
            self.tell_abandoned(run.call.body, run.call.request_id)
        self.connector.aborted(run)
        for choice in run.choices:
            if choice.generation is not None and not self.connector.parks_aborted:
                self.pacer.abort(choice.generation)
                self._observe(choice)

    def tell_abandoned(self, body: GenerationBody, request_id: str) -> None:
        """Tell the prefill worker of a call that is not going to fetch its KV cache."""
        source = self.connector.abandoned(body, request_id)
        if source is not None:
            self._in_background(self._borrower.refuse(source))

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _length(self, call: Call, prompt: list[int], digest: bytes, answer: Answer) -> Length:
        length = answer_length(call, prompt, digest, answer, self.options.longest_tokens)
        most = self.connector.most_tokens(call)
        return length if most is None or length.tokens <= most else Length(most, "length")

    def _submit(self, choice: Choice) -> None:
        assert choice.generation is not None
        self.pacer.submit(choice.generation)

    async def _run_remotely(self, run: Run) -> None:
        """Fetch what is elsewhere, then compute what is not."""
        run.has_begun_fetching = True
        fetches: list[asyncio.Task[None]] = []
        try:
            sources = await self._sources(run)
            for choice, source in zip(run.choices, sources, strict=True):
                if source is not None:
                    fetches.append(asyncio.create_task(self._fetch(choice, source)))
            await asyncio.gather(*fetches)
        except KvLoadError as error:
            if self.connector.hangs_on_lost_kv:
                await asyncio.get_running_loop().create_future()
            run.failure = error
            run.changed.set()
            return
        finally:
            for task in fetches:
                task.cancel()
        for choice, source in zip(run.choices, sources, strict=True):
            if source is None:
                self._submit(choice)

    async def _sources(self, run: Run) -> list[KvSource | None]:
        try:
            return [await self.connector.source(choice) for choice in run.choices]
        except KvLoadError as error:
            self.ledger.errors.append(str(error))
            raise

    async def _fetch(self, choice: Choice, source: KvSource) -> None:
        generation = choice.generation
        assert generation is not None
        try:
            await self._borrower.fetch(source, generation, choice.room, prompt_digest=choice.digest)
        except KvLoadError:
            self.metrics.failed_transfers += 1
            self.pacer.abort(generation)
            if not self.options.recompute_lost_kv:
                raise
            prompt = choice.run.call.prompts[choice.prompt_index]
            choice.generation = new_generation(
                prompt, generation.holding.blocks, choice.length.tokens, changed=partial(self._changed, choice)
            )
            self._submit(choice)

    def _changed(self, choice: Choice) -> None:
        generation = choice.generation
        if generation is None:
            return
        if generation.phase is Phase.KEPT and not choice.is_observed:
            self._hand_over(choice)
        if generation.is_over:
            self._observe(choice)
        choice.room.set()
        choice.run.changed.set()

    def _hand_over(self, choice: Choice) -> None:
        assert choice.generation is not None
        if self.faults.take("no-parameters"):
            self.pacer.release_kept(choice.generation)
            return
        choice.parameters = self.connector.kept(choice)
        if self.faults.take("drop-kv"):
            self.lender.end_all("dropped")

    def _observe(self, choice: Choice) -> None:
        if not choice.is_observed:
            choice.is_observed = True
            self.metrics.observe_end(choice)
