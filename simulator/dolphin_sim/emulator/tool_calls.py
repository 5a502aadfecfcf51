"""Chats whose request forces a call of a tool: the answer's words become the text of one argument."""

from __future__ import annotations

from typing import Any

from dolphin_sim.emulator.call import Call
from dolphin_sim.emulator.request_body import ChatBody

_OPENING = '{"text": "'
_CLOSING = '"}'


class ForcedTool:
    """Writes answers as calls of one tool."""

    def __init__(self, call: Call, name: str) -> None:
        self._id = f"chatcmpl-tool-{call.request_id[-32:]}"
        self._name = name

    def whole(self, text: str) -> list[dict[str, Any]]:
        """Return the call in a whole answer."""
        function = {"name": self._name, "arguments": _OPENING + text + _CLOSING}
        return [{"id": self._id, "type": "function", "function": function}]

    def piece(self, text: str, *, is_first: bool, is_last: bool) -> list[dict[str, Any]]:
        """Return a piece of the call in a stream."""
        arguments = (_OPENING if is_first else "") + text + (_CLOSING if is_last else "")
        if not is_first:
            return [{"index": 0, "function": {"arguments": arguments}}]
        function = {"name": self._name, "arguments": arguments}
        return [{"index": 0, "id": self._id, "type": "function", "function": function}]


def forced_tool(call: Call) -> ForcedTool | None:
    """Return the tool that the request forces: the named one, or the first where any must be called."""
    body = call.body
    if not isinstance(body, ChatBody) or not body.tools or body.tool_choice in (None, "none", "auto"):
        return None
    chosen = body.tool_choice if isinstance(body.tool_choice, dict) else body.tools[0]
    return ForcedTool(call, str(chosen.get("function", {}).get("name", "")))
