"""Environments included in titanrun."""

import ast
import operator
from collections.abc import Callable, Sequence
from pathlib import Path

from titanrun.rl.environments.config import (
    CalculatorConfig,
    GuessNumberConfig,
    MultiTurnEnvironmentConfig,
    SingleTurnConfig,
    ToolLookupConfig,
)
from titanrun.rl.environments.environment_protocol import EnvironmentStep, EnvironmentStepError
from titanrun.rl.rollout_types import Rollout

OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# limit for expressions that a policy writes
MAX_EXPRESSION_CHARS = 100


class BuiltinEnvironment:
    """Environment that responds to each conversation independently."""

    def __init__(self, config: MultiTurnEnvironmentConfig, *, logs: Path) -> None:
        self.config = config
        self.max_turns = config.max_turns

    def step(self, rollouts: Sequence[Rollout]) -> list[EnvironmentStep | EnvironmentStepError]:
        """Return the response to the last completion of each conversation."""
        return [self.respond(rollout) for rollout in rollouts]

    def respond(self, rollout: Rollout) -> EnvironmentStep:
        """Return the response to the last completion."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: no resources are held."""


class SingleTurnEnvironment(BuiltinEnvironment):
    """Environment that ends after the first completion."""

    def __init__(self, config: SingleTurnConfig, *, logs: Path) -> None:
        self.max_turns = 1

    def respond(self, rollout: Rollout) -> EnvironmentStep:
        """End the conversation."""
        return EnvironmentStep()


class GuessNumberEnvironment(BuiltinEnvironment):
    """Environment that responds whether the number is higher (+) or lower (-)."""

    config: GuessNumberConfig

    def respond(self, rollout: Rollout) -> EnvironmentStep:
        """Compare the guess with the number."""
        wanted, said = int(rollout.question.answer), rollout.last_completion_text.strip()
        if not said.lstrip("-").isdecimal():
            return EnvironmentStep("?", done=False)
        guess = int(said)
        if guess == wanted:
            return EnvironmentStep(reward=1.0)
        return EnvironmentStep("+" if guess < wanted else "-", done=False)


class ToolLookupEnvironment(BuiltinEnvironment):
    """Environment that looks words up. The expected answer is the text after the semicolon."""

    config: ToolLookupConfig

    def respond(self, rollout: Rollout) -> EnvironmentStep:
        """Look a word up, or score the final answer."""
        entries, _, wanted = rollout.question.answer.partition(";")
        said = rollout.last_completion_text.strip()
        if not said.startswith("?"):
            return EnvironmentStep(reward=float(said == wanted))
        known = dict(entry.split("=", 1) for entry in entries.split(",") if "=" in entry)
        return EnvironmentStep(known.get(said[1:], "!") + ">", done=False)


class CalculatorEnvironment(BuiltinEnvironment):
    """Environment that evaluates expressions that end with an equals sign."""

    config: CalculatorConfig

    def respond(self, rollout: Rollout) -> EnvironmentStep:
        """Evaluate an expression, or score the final answer."""
        said = rollout.last_completion_text.strip()
        if not said.endswith("="):
            return EnvironmentStep(reward=float(said == rollout.question.answer))
        try:
            return EnvironmentStep(f"{evaluate_expression(said[:-1]):g}>", done=False)
        except (ValueError, ArithmeticError, SyntaxError):
            return EnvironmentStep("!>", done=False)


def evaluate_expression(text: str) -> float:
    """Evaluate an expression of numbers, + - * / and parentheses.

    Raises:
        ValueError: the text is anything else.
    """
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ValueError("too long")
    return evaluate_node(ast.parse(text.strip(), mode="eval").body)


def evaluate_node(node: ast.expr) -> float:
    """Evaluate a node of an expression."""
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return OPERATIONS[type(node.op)](evaluate_node(node.left), evaluate_node(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate_node(node.operand)
    raise ValueError("no sum of numbers")
