"""`titanrun checkpoint`: list, verify, compare, export, import and delete checkpoints.

Most subcommands read manifests only.
"""

import json
from collections.abc import Callable, Mapping

from titanrun.cli import checkpoint_convert, checkpoint_manage, checkpoint_remove
from titanrun.cli.arguments import CommandParser
from titanrun.cli.color import style_text
from titanrun.cli.run_argument import find_checkpoint, find_run
from titanrun.cli.terminal import get_terminal_width, wrap_to_width, write_wrapped
from titanrun.components.checkpoints.spec.manifest import (
    Manifest,
    OtherFormatError,
    is_checkpoint,
    read_manifest,
)
from titanrun.components.checkpoints.spec.storage_path import AnyPath, parse_storage_path
from titanrun.config.exit_codes import EXIT_CHECKPOINT, EXIT_DIFFERS
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.recipe.rundir.checkpoint_lookup import (
    find_checkpoint_damage,
    find_other_owner,
    get_checkpoints_by_step,
    select_checkpoint,
)

EXAMPLES = """  titanrun checkpoint ls runs/first
  titanrun checkpoint show runs/first --tensors
  titanrun checkpoint verify runs/first  verify every byte of every checkpoint
  titanrun checkpoint diff runs/first/checkpoint/step-10 runs/second --names
  titanrun checkpoint now runs/first     save from a running run
  titanrun checkpoint rm runs/first 100  list what would be deleted; --yes deletes it
  titanrun checkpoint prune runs/first --keep 2 --every 100
  titanrun checkpoint export runs/first out --format hf --dtype bfloat16
  titanrun checkpoint import models/llama recipe.yaml out --from hf"""
SUMMARY = (
    "List, verify, compare, export, import and delete checkpoints. Most subcommands need no torch."
)
MIB = 1024**2


def run(arguments: list[str]) -> int:
    """Run one of the subcommands and return its exit code."""
    known: dict[str, Callable[[list[str]], int]] = {
        "ls": list_checkpoints,
        "show": show_checkpoint,
        "verify": verify_checkpoints,
        "diff": diff_checkpoints,
        "rm": checkpoint_remove.remove_checkpoints,
        "prune": checkpoint_manage.prune_checkpoints,
        "now": checkpoint_manage.request_checkpoint,
        "export": checkpoint_convert.export_checkpoint,
        "import": checkpoint_convert.import_checkpoint,
    }
    if arguments and arguments[0] in known:
        return known[arguments[0]](arguments[1:])
    parser = CommandParser("checkpoint", SUMMARY, EXAMPLES)
    parser.add_argument(
        "action",
        metavar="action",
        help=f"{format_word_list(known, conjunction='or')}; see each with --help",
    )
    parser.add_argument("rest", metavar="argument", nargs="*", help="arguments of the subcommand")
    asked = parser.parse_args(arguments).action
    meant = find_closest(asked, known)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"subcommands: {format_word_list(known, conjunction='and')}"
    )
    raise problem_error("usage", f"unknown subcommand of titanrun checkpoint: '{asked}'", hint=hint)


def list_checkpoints(arguments: list[str]) -> int:
    """List the checkpoints of a run, one per line."""
    parser = CommandParser(
        "checkpoint ls",
        "List the checkpoints of a run, oldest first. Reads manifests, not tensors.",
        EXAMPLES,
    )
    parser.add_argument(
        "place",
        metavar="run",
        help="a run directory, the folder of its checkpoints, or one of them",
    )
    parser.add_format_option("json: one object per checkpoint")
    options = parser.parse_args(arguments)
    named = parse_storage_path(find_run(options.place))
    found = [named] if is_checkpoint(named) else list(get_checkpoints_by_step(named).values())
    if not found:
        raise problem_error(
            "checkpoint",
            f"no checkpoints in '{options.place}'",
            hint="pass a run directory",
        )
    for folder in found:
        line = format_checkpoint_line(folder, options.format)
        print(line if options.format == "json" else wrap_to_width(line, get_terminal_width()))
    return 0


def format_checkpoint_line(folder: AnyPath, output_format: str) -> str:
    """Format one checkpoint on one line."""
    try:
        manifest = read_manifest(folder)
    except ProblemsFound as error:
        reason = error.problems[0].message
        return (
            json.dumps({"path": str(folder), "problem": reason})
            if output_format == "json"
            else f"{folder}  BAD: {reason}"
        )
    if output_format == "json":
        about = {
            "path": str(folder),
            "step": manifest.step,
            "holds": manifest.holds,
            "bytes": manifest.size,
        }
        return json.dumps(
            {
                **about,
                "saved_at": manifest.saved_at,
                "validation_loss": manifest.validation_loss,
                "layout": manifest.layout,
            }
        )
    loss = (
        ""
        if manifest.validation_loss is None
        else f"  validation loss {manifest.validation_loss:.5f}"
    )
    return (
        f"{folder}  {manifest.holds:<10}  {manifest.size / MIB:10.1f} MiB  "
        f"{manifest.saved_at}{loss}"
    )


def show_checkpoint(arguments: list[str]) -> int:
    """Show the contents of one checkpoint."""
    parser = CommandParser(
        "checkpoint show", "Show the contents of a checkpoint, from its manifest.", EXAMPLES
    )
    parser.add_argument(
        "place", metavar="checkpoint", help="a checkpoint, or a run directory for its newest one"
    )
    parser.add_argument(
        "--tensors", action="store_true", help="list every tensor with type and shape"
    )
    parser.add_format_option("json: the manifest, one object")
    options = parser.parse_args(arguments)
    folder = find_checkpoint(options.place)
    manifest = read_manifest(folder)
    if options.format == "json":
        print((folder / "manifest.json").read_text(encoding="utf-8"), end="")
        return 0
    for name, value in get_checkpoint_facts(folder, manifest).items():
        write_wrapped(f"{name:<16}  {value}\n")
    for name, layout in manifest.tensors.items() if options.tensors else ():
        write_wrapped(f"{name}  {layout}\n")
    return 0


def get_checkpoint_facts(folder: AnyPath, manifest: Manifest) -> dict[str, object]:
    """Return the properties of a checkpoint as text."""
    weights = [name for name in manifest.tensors if not name.startswith("optimizer.")]
    return {
        "checkpoint": folder,
        "step": manifest.step,
        "holds": manifest.holds,
        "tensors": (
            f"{len(weights)} of weights, {len(manifest.tensors) - len(weights)} of the optimizer"
        ),
        "files": f"{len(manifest.files)}, {manifest.size / MIB:.1f} MiB",
        "saved at": manifest.saved_at,
        "saved by": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "layout": format_saved_layout(manifest.layout),
        "validation loss": "not measured after this step"
        if manifest.validation_loss is None
        else manifest.validation_loss,
        "recipe": f"resolved.yaml, sha256 {manifest.recipe}",
    }


def format_saved_layout(layout: Mapping[str, object]) -> str:
    """Format the ranks that saved a checkpoint, and the parallel degrees.

    Example: `4 ranks, tensor_parallel_degree 2`.
    """
    ranks = layout.get("ranks", 1)
    split = [
        f"{name} {degree}"
        for name, degree in layout.items()
        if name.endswith("_degree") and degree != 1
    ]
    return ", ".join([f"{ranks} ranks", *split]) if ranks != 1 else "1 rank"


def verify_checkpoints(arguments: list[str]) -> int:
    """Return 0 if every byte is as saved, else 4."""
    parser = CommandParser(
        "checkpoint verify",
        "Read every byte of one checkpoint, or of all checkpoints of a run, and compare with the "
        "manifest.",
        EXAMPLES,
    )
    parser.add_argument(
        "place", metavar="run|checkpoint", help="a run directory, or one checkpoint"
    )
    options = parser.parse_args(arguments)
    named = parse_storage_path(find_run(options.place))
    folders = list(get_checkpoints_by_step(named).values()) or [select_checkpoint(named)]
    bad = 0
    for folder in folders:
        try:
            reasons = find_checkpoint_damage(folder) or find_other_owner(folder)
        except OtherFormatError as error:
            reasons = [error.problems[0].message]
        bad += bool(reasons)
        verdict = style_text("; ".join(reasons) or "ok", "bad" if reasons else "good")
        print(f"{folder}: {verdict}")
    return EXIT_CHECKPOINT if bad else 0


def diff_checkpoints(arguments: list[str]) -> int:
    """Return 0 if the checkpoints are equal, else 1."""
    parser = CommandParser(
        "checkpoint diff",
        "List the tensors that only one of two checkpoints has, and those that differ.",
        EXAMPLES,
    )
    parser.add_argument("a", help="a checkpoint, or a run directory for its newest one")
    parser.add_argument("b", help="another one")
    parser.add_argument(
        "--names",
        action="store_true",
        help="compare only names, types and shapes, from the manifests",
    )
    options = parser.parse_args(arguments)
    folders = [find_checkpoint(named) for named in (options.a, options.b)]
    left, right = (read_manifest(folder).tensors for folder in folders)
    lines = [f"- {name}  {left[name]}" for name in left if name not in right]
    lines += [f"+ {name}  {right[name]}" for name in right if name not in left]
    lines += [
        f"~ {name}  {left[name]} -> {right[name]}"
        for name in left
        if name in right and left[name] != right[name]
    ]
    for text in lines:
        print(text)
    values = (
        0
        if options.names
        else checkpoint_convert.run_checkpoint_worker(
            {"do": "diff", "a": str(folders[0]), "b": str(folders[1])}
        )
    )
    return max(values, EXIT_DIFFERS if lines else 0)
