"""When and where a request is tried again, after a worker has failed it and before the client has seen a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dolphin_router.completion_request import CompletionRequest
from dolphin_router.prompt_reader import ReadPrompt
from dolphin_router.routing import NOTHING_EXCLUDED, Exclusions, NoRoute, Route, reroute_decode

from .attempt import Attempt

if TYPE_CHECKING:
    from dolphin_router.data_plane import DataPlane


class Retries:
    """Finds the routes of one request. Each new one keeps to the operator's numbers and to the budget of all requests,
    which is only spent when there is a worker to go to."""

    __slots__ = (
        "_completion",
        "_decode_retries",
        "_excluded",
        "_forced_local",
        "_has_asked_again",
        "_plane",
        "_prefill_tries",
        "_prompt",
    )

    def __init__(self, plane: DataPlane, completion: CompletionRequest, prompt: ReadPrompt) -> None:
        self._plane = plane
        self._completion = completion
        self._prompt = prompt
        self._excluded: set[str] = set()
        self._forced_local: str | None = None
        self._prefill_tries = 0
        self._decode_retries = 0
        self._has_asked_again = False

    def first_route(self) -> Route:
        """Return where the request goes at first.

        Raises:
            NoRoute: nowhere.
        """
        return self._plane.route(self._completion, self._prompt, NOTHING_EXCLUDED)

    def after_prefill_failure(self, failed: Attempt, *, retries: int) -> Route | None:
        """Return where to try again, by another prefill worker; none when that is not to be."""
        plane = self._plane
        prefill = failed.route.prefill
        assert prefill is not None
        self._prefill_tries += 1
        self._excluded.add(prefill.name)
        others = [state for state in plane.fleet.ready["prefill"] if state.name not in self._excluded]
        if self._prefill_tries > retries or not others:
            return None
        return self._route_within_budget()

    def local_route(self) -> Route | None:
        """Return where the prompt can be computed without a prefill worker; none where the operator does not want that
        or no worker can."""
        if self._plane.config.on_prefill_error != "local":
            return None
        self._forced_local = "prefill_failed"
        return self._route()

    def after_transfer_failure(self, failed: Attempt) -> Route | None:
        """Return where the prompt can be computed when its KV cache was pushed and never announced; none when there is
        no other worker.

        LMCache's decode worker knows a KV cache by its tokens from the moment at which the first byte is to be written
        (``PDBackend._async_allocate_and_put``). Asked too early, it answers from memory that holds something else.
        """
        self._excluded.add(failed.route.decode.name)
        self._forced_local = "not_announced"
        return self._route()

    def after_decode_failure(self, failed: Attempt, *, has_kv_cache: bool) -> Route | None:
        """Return where to try again; none when that is not to be.

        Args:
            failed: the attempt.
            has_kv_cache: whether there is a KV cache that no decode worker has heard of. Then only the decode worker is
                another one.
        """
        plane = self._plane
        if failed.may_be_unread and not self._has_asked_again:
            # No worker has failed: a connection was closed for being idle, just when it was used.
            self._has_asked_again = True
            return self._route()
        self._excluded.add(failed.route.decode.name)
        if self._decode_retries >= plane.config.decode_retries:
            return None
        self._decode_retries += 1
        if not has_kv_cache:
            return self._route_within_budget()
        exclusions = Exclusions(self._excluded, None)
        route = reroute_decode(failed.route, self._prompt, fleet=plane.fleet, exclusions=exclusions)
        return route if route is not None and plane.budget.spend() else None

    def _route_within_budget(self) -> Route | None:
        route = self._route()
        return route if route is not None and self._plane.budget.spend() else None

    def _route(self) -> Route | None:
        exclusions = Exclusions(self._excluded, self._forced_local)
        try:
            return self._plane.route(self._completion, self._prompt, exclusions)
        except NoRoute:
            return None
