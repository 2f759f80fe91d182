"""Record of what the predictions of a teacher in files are of."""

from dataclasses import dataclass
from pathlib import Path

from titanrun.config.json_text import parse_json
from titanrun.config.problems import DataPath, ProblemsFound, problem_error

RECORD = "teacher.json"
PATH: DataPath = ("loss", "teacher_logprobs", "path")
WRITE_AGAIN = "remove the folder; titanrun data teach RECIPE writes it again"
WRITE_OTHERS = "titanrun data teach RECIPE writes them; remove the folder first if it has others"


@dataclass(frozen=True, slots=True)
class TaughtRecord:
    """What predictions in files are of.

    Args:
        fingerprint: fingerprint of the dataset.
        top_k: predictions of a token.
        temperature: divisor of the teacher's logits.
        vocab_size: number of tokens that the teacher predicts.
        teacher: place of the teacher, for people.
    """

    fingerprint: str
    top_k: int
    temperature: float
    vocab_size: int
    teacher: str

    def find_difference(self, *, top_k: int, temperature: float) -> str | None:
        """Return what the predictions are, if a loss with these settings cannot read them."""
        wanted = min(top_k, self.vocab_size)
        if self.temperature != temperature:
            return f"of temperature {self.temperature:g}, not {temperature:g}"
        if self.top_k < wanted:
            return f"the likeliest {self.top_k:,} only, not {wanted:,}"
        return None


def read_taught_record(folder: Path) -> TaughtRecord | None:
    """Return what the predictions in a folder are of, None if there are none."""
    file = folder / RECORD
    if not file.is_file():
        return None
    try:
        return TaughtRecord(**parse_json(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise build_prediction_error(file, "is no record of predictions") from None


def build_prediction_error(path: Path, what: str) -> ProblemsFound:
    """Build the problem of a file that is not what was written."""
    message = what if str(path) in what else f"'{path}' {what}"
    return problem_error("data", message, path=PATH, hint=WRITE_AGAIN, is_absolute=True)
