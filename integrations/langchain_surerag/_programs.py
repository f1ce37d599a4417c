"""What stands around a method at work, between it and the driver that answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from surerag.effects import Effect, Program

T = TypeVar("T")


def mapped(program: Program[T], change: Callable[[Effect], Effect]) -> Program[T]:
    """Change, or take note of, every effect of a program before it is answered."""
    effect = next(program)
    while True:
        try:
            answer = yield change(effect)
        except GeneratorExit:
            program.close()
            raise
        except BaseException as error:
            step = partial(program.throw, error)
        else:
            step = partial(program.send, answer)
        try:
            effect = step()
        except StopIteration as stop:
            result: T = stop.value
            return result
