"""Put the messages that all ranks recorded into one sequence of steps, for drawing them (lesson 02).

Clocks of ranks are not needed: a rank's own calls are in order, and a receive belongs to the send that it
takes. A message gets the first step in which its sender has everything that it received before, the sender
sends nothing else and the receiver receives nothing else (the one-port model: links are full duplex, one
message each way at a time). Under it a ring of N ranks takes 2(N-1) steps, a tree 2 log2 N and a parameter
server 2(N-1).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from dtlab.collectives.traffic_counter import Message, Traffic

__all__ = ["in_steps"]

# (src, dst, tag): messages on one link arrive in the order in which they were sent.
Link = tuple[int, int, int]


class _Rank:
    """One rank's recorded calls, and how far it got."""

    def __init__(self, recorded: Traffic) -> None:
        sends, receives = iter(recorded.log), iter(recorded.received_log)
        self.calls = [(kind, next(sends if kind == "s" else receives)) for kind in recorded.order]
        self.ready = 0  # the first step in which it has what it received so far
        self.sends_again = 0  # the first step in which its sending side is free

    def next_send(self) -> Message | None:
        return self.calls[0][1] if self.calls and self.calls[0][0] == "s" else None

    def next_receive(self) -> Message | None:
        return self.calls[0][1] if self.calls and self.calls[0][0] == "r" else None


def in_steps(recorded: Sequence[Traffic]) -> list[Message]:
    """All messages of all ranks, ordered by ``(step, src, dst)``, with ``step`` counted over the whole run.

    ``recorded``: the :class:`Traffic` of each rank. ``chunk`` is the tag; when no message has one, chunks are
    numbered by where their data lie in the sender's storage, so that code without tags can be drawn too.

    >>> in_steps([Traffic(rank=0), Traffic(rank=1)])
    []
    """
    ranks = {one.rank: _Rank(one) for one in recorded}
    arrivals: dict[Link, list[int]] = defaultdict(list)  # steps of the messages that nobody took yet
    passed_over: dict[Link, int] = defaultdict(int)  # receives that were posted, but not waited for
    receives_again: dict[int, int] = defaultdict(int)
    ordered: list[Message] = []

    def step_of(message: Message) -> int:
        sender = ranks[message.src]
        return max(sender.ready, sender.sends_again, receives_again[message.dst])

    while any(one.calls for one in ranks.values()):
        received = False
        for one in ranks.values():
            while (message := one.next_receive()) and arrivals[_link(message)]:
                one.ready = max(one.ready, arrivals[_link(message)].pop(0) + 1)
                one.calls.pop(0)
                received = True
        if received:
            continue
        sends = [message for one in ranks.values() if (message := one.next_send())]
        if sends:
            message = min(sends, key=lambda one: (step_of(one), one.src, one.dst))
            step, sender = step_of(message), ranks[message.src]
            sender.sends_again = receives_again[message.dst] = step + 1
            sender.calls.pop(0)
            ordered.append(replace(message, step=step))
            if passed_over[_link(message)]:
                passed_over[_link(message)] -= 1
            else:
                arrivals[_link(message)].append(step)
            continue
        # Every rank stands at a receive: it was posted before the sends that follow it and was not waited for
        # (or its sender was not recorded), so those sends do not depend on it.
        for one in ranks.values():
            if message := one.next_receive():
                passed_over[_link(message)] += 1
                one.calls.pop(0)
    return _numbered(sorted(ordered, key=lambda message: (message.step, message.src, message.dst)))


def _link(message: Message) -> Link:
    return message.src, message.dst, message.chunk


def _numbered(messages: list[Message]) -> list[Message]:
    if any(message.chunk for message in messages):
        return messages
    places = sorted({message.offset for message in messages})
    number = {offset: index for index, offset in enumerate(places)}
    return [replace(message, chunk=number[message.offset]) for message in messages]
