"""What every engine adapter does: it owns the engine's wire protocol, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Protocol

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.worker import Worker

from .locality import why_local


class LegOrder(Enum):
    """When the two legs of a remote prefill are sent."""

    SERIAL = "serial"
    """The decode leg needs what the prefill worker answered."""
    CONCURRENT = "concurrent"
    """Both at once; the workers find each other. The prefill worker's answer is read to its end, and only its usage may
    matter."""
    DECODE_ONLY = "decode-only"
    """One leg: whatever stands before the decode worker talks to the prefill worker."""


class Leg(NamedTuple):
    """One request to one worker. The path is the client's; so are all headers but these."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Sent besides the client's headers, and instead of the client's with the same name."""


class PrefillAnswer(NamedTuple):
    """What the decode leg needs of a prefill worker's answer."""

    transfer_parameters: bytes | None
    """The JSON object that names the KV cache, byte for byte; empty where it is shipped without a name; none when
    nothing is shipped, so that the decode worker computes the prompt after all."""
    cached_tokens: int | None
    """Prompt tokens that the prefill worker found in its prefix cache, where it said so."""


class Probe(NamedTuple):
    """A request that tells what the adapter must know of a worker before it can be used: ``GET path``."""

    port: int
    path: str


class AnswerEdit(Protocol):
    """Makes a worker's answer that of an undivided engine. One object for each answer."""

    def prefill_answered(self, answer: PrefillAnswer) -> None:
        """Say what the prefill worker answered, when that came after this object was made."""
        return None

    def whole(self, body: bytes) -> bytes:
        """Return the body of an answer that is not a stream."""

    def events(self, piece: bytes) -> bytes:
        """Return what may go to the client after this piece of an event stream. Holds back an unfinished event."""

    def rest(self) -> bytes:
        """Return what was held back, at the end of the stream."""


class EngineAdapter(Protocol):
    """Turns a client's request into the requests that workers get. Adapters inherit what is the same for most."""

    name: str
    """As in the router's configuration."""
    order: LegOrder
    decode_worker_prefills: bool = True
    """Whether a decode worker can compute a prompt itself; otherwise local prefill needs an aggregated worker."""
    prefill_can_be_cancelled: bool = True
    """Whether closing the connection of a prefill leg frees what was computed. Where it does not, the leg must run to
    its end and :meth:`release_leg` must be sent, whatever became of the client."""

    def probe(self, worker: Worker) -> Probe | None:
        """Return the request to make before this worker is used; none when nothing need be known."""
        return None

    def facts(self, body: bytes) -> Mapping[str, object]:
        """Return what the answer to the probe says, to be kept in ``Worker.facts``.

        Raises:
            ValueError: the answer is not what the engine should say; the message says how.
        """
        return {}

    def why_local(self, request: CompletionRequest) -> str | None:
        """Return why this request cannot be prefilled remotely, fit for a metric's label; none when it can."""
        return why_local(request)

    def local_leg(self, request: CompletionRequest) -> Leg:
        """Return the request for a worker that computes the prompt itself."""
        return Leg(request.body)

    def prefill_leg(self, request: CompletionRequest, prefill: Worker, decode: Worker, transfer_id: int) -> Leg:
        """Return the request for the prefill worker. Not for :attr:`LegOrder.DECODE_ONLY`.

        ``transfer_id`` is a random number below 2**63, new for every attempt and the same on both legs.
        """

    def read_prefill_answer(self, body: bytes) -> PrefillAnswer:
        """Return what a prefill worker's answer with status 200 holds. For :attr:`LegOrder.CONCURRENT` it only serves
        :meth:`AnswerEdit.prefill_answered`.

        Raises:
            ValueError: the answer cannot be used; the message says why.
        """
        return PrefillAnswer(None, None)

    def notices_awaited(self, decode: Worker) -> int:
        """Return how many notices that the KV cache has arrived must come before the decode leg is sent. Engines push
        them to a ZeroMQ PULL socket of the router's, and may do so before the prefill worker's answer."""
        return 0

    def read_notice(self, message: bytes) -> int:
        """Return the transfer id that a notice is about.

        Raises:
            ValueError: it is no notice; the message says what it is.
        """
        raise ValueError(f"{self.name} sends no notices, but one came: {message[:40]!r}")

    def decode_leg(
        self,
        request: CompletionRequest,
        prefill: Worker,
        decode: Worker,
        transfer_id: int,
        answer: PrefillAnswer | None,
    ) -> Leg:
        """Return the request for the decode worker; ``answer`` for :attr:`LegOrder.SERIAL` alone.

        Without transfer parameters in the answer it is the local leg: the decode worker computes the prompt.
        """

    def release_leg(
        self, request: CompletionRequest, prefill: Worker, decode: Worker, answer: PrefillAnswer
    ) -> Leg | None:
        """Return a request that makes the decode worker take the KV cache and drop it, so that the prefill worker
        frees it: for a client that left between the legs, and for a decode leg that was rejected. It must be answered
        whole. None where there is nothing to free, or the engine frees it without."""
        return None

    def answer_edit(self, request: CompletionRequest, answer: PrefillAnswer | None) -> AnswerEdit | None:
        """Return what must be changed in the decode worker's answer; none when it can pass as it is.

        ``answer`` is None for a local request. Where the prefill worker has not answered yet, its fields are.
        """
        return None
