"""The environment slot and its choices."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Len

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.types import Argument, NonNegativeInt, PositiveFloat, PositiveInt, VariableName


class EnvironmentConfig(ComponentConfig):
    """Environment that responds to a policy, turn by turn."""

    slot: ClassVar = "environment"
    is_slot: ClassVar = True
    builds_what: ClassVar = "an object with max_turns, step(rollouts) and close()"
    built_attributes: ClassVar = ("max_turns", "step", "close")
    default_name: ClassVar = "single_turn"
    reads_answer: ClassVar[bool] = False
    """Whether the environment needs the expected answer."""


class SingleTurnConfig(EnvironmentConfig):
    """One prompt and one completion."""

    name: Literal["single_turn"] = numerics("single_turn")
    builds: ClassVar = "titanrun.rl.environments.builtin_environments:SingleTurnEnvironment"


class MultiTurnEnvironmentConfig(EnvironmentConfig):
    """Fields of multi-turn environments."""

    max_turns: PositiveInt = numerics(4, unit="turns")
    """Completions of the policy after which the conversation is truncated."""


class GuessNumberConfig(MultiTurnEnvironmentConfig):
    """Guessing of the expected answer, a number, with responses higher or lower.

    The reward is 1 for the right number.
    """

    name: Literal["guess_number"] = numerics("guess_number")
    builds: ClassVar = "titanrun.rl.environments.builtin_environments:GuessNumberEnvironment"
    reads_answer: ClassVar = True


class ToolLookupConfig(MultiTurnEnvironmentConfig):
    """Dictionary as a tool: a completion `?word` is looked up in the expected answer.

    The expected answer has the form `word=value,...;answer`.
    """

    name: Literal["tool_lookup"] = numerics("tool_lookup")
    builds: ClassVar = "titanrun.rl.environments.builtin_environments:ToolLookupEnvironment"
    reads_answer: ClassVar = True


class CalculatorConfig(MultiTurnEnvironmentConfig):
    """Calculator as a tool: a completion that ends with `=` is evaluated.

    The result is returned to the policy. Any other completion is the last one.
    """

    name: Literal["calculator"] = numerics("calculator")
    builds: ClassVar = "titanrun.rl.environments.builtin_environments:CalculatorEnvironment"


class ProgramConfig(MultiTurnEnvironmentConfig):
    """External program in any language, with one JSON object per line on stdin and stdout."""

    name: Literal["program"] = numerics("program")
    builds: ClassVar = "titanrun.rl.environments.program_environment:ProgramEnvironment"
    command: Annotated[tuple[Argument, ...], Len(1)] = numerics(
        examples=[["python", "world.py"]], runs="command"
    )
    """Program and arguments. They run only with the user's consent: `--trust`.

    The program reads a line `{"prompt", "expected", "answers", "heard"}` for each turn, and writes
    a line `{"text": "higher", "reward": 0.0, "done": false}`.
    """
    secret_variables: tuple[VariableName, ...] = bookkeeping((), examples=[["OPENAI_API_KEY"]])
    """Environment variables with secrets that the program gets. It gets no others that look like
    one."""
    step_timeout_seconds: PositiveFloat = bookkeeping(60.0, unit="seconds")
    """Longest duration of a turn. Then the program is restarted, the conversation dropped."""
    max_restarts: NonNegativeInt = bookkeeping(3)
    """Restarts of a crashed or hanging program before the run stops."""
    processes: PositiveInt = performance(1, unit="processes")
    """Copies of the program, which respond to conversations at the same time.

    Each process of a fleet has as many of its own."""
