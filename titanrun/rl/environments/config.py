"""The environment slot and its choices: what a policy talks to."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Len

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import bookkeeping, numerics
from titanrun.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Text


class EnvironmentConfig(ComponentConfig):
    """What a policy talks to, turn by turn."""

    slot: ClassVar = "environment"
    is_slot: ClassVar = True
    default_name: ClassVar = "single_turn"


class SingleTurnConfig(EnvironmentConfig):
    """A prompt and its answer."""

    name: Literal["single_turn"] = numerics("single_turn")
    builds: ClassVar = "titanrun.rl.environments.games:SingleTurn"


class TurnsConfig(EnvironmentConfig):
    """What environments of several turns share."""

    max_turns: PositiveInt = numerics(4, unit="turns")
    """Answers of the policy before the conversation is cut off."""


class GuessNumberConfig(TurnsConfig):
    """The policy guesses the number that is the expected answer, and hears higher or lower. Reward: 1 for the right one."""

    name: Literal["guess_number"] = numerics("guess_number")
    builds: ClassVar = "titanrun.rl.environments.games:GuessNumber"


class ToolLookupConfig(TurnsConfig):
    """A dictionary as a tool: an answer `?word` is looked up in the expected answer, of the form `word=value,...;answer`."""

    name: Literal["tool_lookup"] = numerics("tool_lookup")
    builds: ClassVar = "titanrun.rl.environments.games:ToolLookup"


class CalculatorConfig(TurnsConfig):
    """A calculator as a tool: an answer that ends with `=` is computed and given back; any other answer is the last one."""

    name: Literal["calculator"] = numerics("calculator")
    builds: ClassVar = "titanrun.rl.environments.games:Calculator"


class ProgramConfig(TurnsConfig):
    """A program of yours as the environment, in any language: JSON objects on stdin and stdout, one a line."""

    name: Literal["program"] = numerics("program")
    builds: ClassVar = "titanrun.rl.environments.program:Program"
    command: Annotated[tuple[Text, ...], Len(1)] = numerics(examples=[["python", "world.py"]])
    """The program and its arguments."""
    step_timeout_seconds: PositiveFloat = bookkeeping(60.0, unit="seconds")
    """How long one turn may take; a program that takes longer is started again, and the conversation is dropped."""
    max_restarts: NonNegativeInt = bookkeeping(3)
    """How often a program that died or hung is started again before the run stops."""
