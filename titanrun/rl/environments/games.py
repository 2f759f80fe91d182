"""Environments that titanrun brings along."""

import ast
import operator
from collections.abc import Callable, Sequence
from pathlib import Path

from titanrun.rl.environments.config import (
    CalculatorConfig,
    GuessNumberConfig,
    SingleTurnConfig,
    ToolLookupConfig,
    TurnsConfig,
)
from titanrun.rl.environments.environment import Answered, EnvironmentFailed
from titanrun.rl.samples import Rollout

OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# a sum that a policy writes has no business being larger
LONGEST_SUM = 100


class Game:
    """An environment that answers each conversation by itself."""

    def __init__(self, config: TurnsConfig, *, logs: Path) -> None:
        self.config = config
        self.max_turns = config.max_turns

    def reply(self, rollouts: Sequence[Rollout]) -> list[Answered | EnvironmentFailed]:
        """What follows the last answer of each conversation."""
        return [self.answer(rollout) for rollout in rollouts]

    def answer(self, rollout: Rollout) -> Answered:
        """What follows the last answer."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was started."""


class SingleTurn(Game):
    """Over after the first answer."""

    def __init__(self, config: SingleTurnConfig, *, logs: Path) -> None:
        self.max_turns = 1

    def answer(self, rollout: Rollout) -> Answered:
        return Answered()


class GuessNumber(Game):
    """Says whether the number is higher or lower: + or -."""

    config: GuessNumberConfig

    def answer(self, rollout: Rollout) -> Answered:
        wanted, said = int(rollout.question.answer), rollout.answer.strip()
        if not said.lstrip("-").isdecimal():
            return Answered("?", done=False)
        guess = int(said)
        if guess == wanted:
            return Answered(reward=1.0)
        return Answered("+" if guess < wanted else "-", done=False)


class ToolLookup(Game):
    """Looks words up. The expected answer is that behind the semicolon."""

    config: ToolLookupConfig

    def answer(self, rollout: Rollout) -> Answered:
        entries, _, wanted = rollout.question.answer.partition(";")
        said = rollout.answer.strip()
        if not said.startswith("?"):
            return Answered(reward=float(said == wanted))
        known = dict(entry.split("=", 1) for entry in entries.split(",") if "=" in entry)
        return Answered(known.get(said[1:], "!") + ">", done=False)


class Calculator(Game):
    """Computes what ends with an equals sign."""

    config: CalculatorConfig

    def answer(self, rollout: Rollout) -> Answered:
        said = rollout.answer.strip()
        if not said.endswith("="):
            return Answered(reward=float(said == rollout.question.answer))
        try:
            return Answered(f"{computed(said[:-1]):g}>", done=False)
        except (ValueError, ArithmeticError, SyntaxError):
            return Answered("!>", done=False)


def computed(text: str) -> float:
    """What a sum of numbers, + - * / and brackets comes to. Raises ValueError for anything else."""
    if len(text) > LONGEST_SUM:
        raise ValueError("too long")
    return value_of(ast.parse(text.strip(), mode="eval").body)


def value_of(node: ast.expr) -> float:
    """The value of one part of a sum."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](value_of(node.left), value_of(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -value_of(node.operand)
    raise ValueError("no sum of numbers")
