"""`titanrun fork`: a new run from the weights of a checkpoint, with its recipe and what is changed in it."""

from titanrun.cli import train
from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.resume import loudness, setting
from titanrun.cli.voice import note
from titanrun.components.checkpoints.addresses import place
from titanrun.recipe.saved import absolute, resolved_file, trusted_at

EXAMPLES = """  titanrun fork runs/first/checkpoint/step-40 optimizer.lr=1e-4
  titanrun fork runs/first training.dataset.path=more.npy dump_folder=runs/second      from the newest good checkpoint of a run"""
# how the parent itself began is its own story
PARENTS_OWN = (
    "load_step",
    "exclude_from_loading",
    "initial_load_model_only",
    "initial_load_in_hf",
    "allow_change",
    "load_only",
)


def run(arguments: list[str]) -> int:
    """Train; the worker's exit code is the command's."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "fork",
        "Start a new run from the weights of a checkpoint; run.json names the parent.",
        EXAMPLES,
    )
    parser.add_argument(
        "place",
        metavar="checkpoint",
        help="a checkpoint, or a run directory for its newest good one",
    )
    parser.takes_trust()
    parser.takes_reporting()
    parser.takes_overrides()
    options = parser.parse_args(others)
    checkpoint, damaged = trusted_at(place(options.place))
    for folder, reasons in damaged.items():
        note(options, f"warning: {folder} cannot be used: {'; '.join(reasons)}")
    resets = [f"checkpoint.{name}!" for name in PARENTS_OWN]
    weights = setting("checkpoint.initial_load_path", absolute(checkpoint))
    return train.run([resolved_file(checkpoint), *resets, weights, *overrides, *loudness(options)])
