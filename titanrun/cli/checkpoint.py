"""`titanrun checkpoint`: look at saved checkpoints, check, compare, copy out and in, and clear away. Most of it reads manifests only."""

import json
from collections.abc import Callable, Mapping

from titanrun.cli import checkpoint_care, checkpoint_copies
from titanrun.cli.arguments import Parser
from titanrun.components.checkpoints.addresses import Place, place
from titanrun.components.checkpoints.manifest import Manifest, is_checkpoint, read_manifest
from titanrun.config.problems import EXIT_OF_CODE, ProblemsFound, fail
from titanrun.config.suggest import closest, listing
from titanrun.recipe.saved import checkpoint_at, checkpoints_at, reasons_against

EXAMPLES = """  titanrun checkpoint ls runs/first
  titanrun checkpoint show runs/first --tensors
  titanrun checkpoint verify runs/first                                    every byte of every checkpoint
  titanrun checkpoint diff runs/first/checkpoint/step-10 runs/second --names
  titanrun checkpoint save runs/first                                      of a run that is training now
  titanrun checkpoint prune runs/first --keep 2 --every 100
  titanrun checkpoint export runs/first out --format hf --dtype bfloat16
  titanrun checkpoint import models/llama recipe.yaml out --from hf"""
SUMMARY = "Look at saved checkpoints, check, compare, copy them out and in, and clear away. Most of it needs no torch."
MIB = 1024**2
EXIT_DIFFERS = 1


def run(arguments: list[str]) -> int:
    """The exit code of one of the subcommands."""
    known: dict[str, Callable[[list[str]], int]] = {
        "ls": list_checkpoints,
        "show": show,
        "verify": verify,
        "diff": diff,
        "prune": checkpoint_care.prune,
        "save": checkpoint_care.save,
        "export": checkpoint_copies.export,
        "import": checkpoint_copies.take_in,
    }
    if arguments and arguments[0] in known:
        return known[arguments[0]](arguments[1:])
    parser = Parser("checkpoint", SUMMARY, EXAMPLES)
    parser.add_argument(
        "action",
        metavar="action",
        help=f"{listing(known, last='or')}; each explains itself with --help",
    )
    parser.add_argument("rest", metavar="argument", nargs="*", help="what it takes")
    asked = parser.parse_args(arguments).action
    meant = closest(asked, known)
    help = f"did you mean '{meant}'?" if meant else f"it does {listing(known, last='and')}"
    raise fail("usage", f"titanrun checkpoint does not know '{asked}'", help=help)


def list_checkpoints(arguments: list[str]) -> int:
    """The checkpoints of a run, a line each."""
    parser = Parser(
        "checkpoint ls",
        "The checkpoints of a run, oldest first. Manifests are read, tensors are not.",
        EXAMPLES,
    )
    parser.add_argument(
        "place",
        metavar="run",
        help="a run directory, the folder of its checkpoints, or one of them",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    named = place(options.place)
    found = [named] if is_checkpoint(named) else list(checkpoints_at(named).values())
    if not found:
        raise fail(
            "checkpoint",
            f"there are no checkpoints in '{options.place}'",
            help="name a run directory",
        )
    for folder in found:
        print(line(folder, options.format))
    return 0


def line(folder: Place, form: str) -> str:
    """One checkpoint on a line."""
    try:
        manifest = read_manifest(folder)
    except ProblemsFound as error:
        reason = error.problems[0].message
        return (
            json.dumps({"path": str(folder), "problem": reason})
            if form == "json"
            else f"{folder}  BAD: {reason}"
        )
    if form == "json":
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
    return f"{folder}  {manifest.holds:<10}  {manifest.size / MIB:10.1f} MiB  {manifest.saved_at}{loss}"


def show(arguments: list[str]) -> int:
    """What one checkpoint holds."""
    parser = Parser("checkpoint show", "What a checkpoint holds, from its manifest.", EXAMPLES)
    parser.add_argument(
        "place", metavar="checkpoint", help="a checkpoint, or a run directory for its newest one"
    )
    parser.add_argument("--tensors", action="store_true", help="every tensor with type and shape")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    folder = checkpoint_at(place(options.place))
    manifest = read_manifest(folder)
    if options.format == "json":
        print((folder / "manifest.json").read_text(encoding="utf-8"), end="")
        return 0
    for name, value in about(folder, manifest).items():
        print(f"{name:<16} {value}")
    for name, layout in manifest.tensors.items() if options.tensors else ():
        print(f"{name}  {layout}")
    return 0


def about(folder: Place, manifest: Manifest) -> dict[str, object]:
    """The facts of a checkpoint, in words."""
    weights = [name for name in manifest.tensors if not name.startswith("optimizer.")]
    return {
        "checkpoint": folder,
        "step": manifest.step,
        "holds": manifest.holds,
        "tensors": f"{len(weights)} of weights, {len(manifest.tensors) - len(weights)} of the optimizer",
        "files": f"{len(manifest.files)}, {manifest.size / MIB:.1f} MiB",
        "saved at": manifest.saved_at,
        "saved by": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
        "layout": layout_words(manifest.layout),
        "validation loss": "not measured after this step"
        if manifest.validation_loss is None
        else manifest.validation_loss,
        "recipe": f"resolved.yaml, sha256 {manifest.recipe}",
    }


def layout_words(layout: Mapping[str, object]) -> str:
    """The ranks that saved a checkpoint, and the degrees that split or repeated the model: `4 ranks, tensor_parallel_degree 2`."""
    ranks = layout.get("ranks", 1)
    split = [
        f"{name} {degree}"
        for name, degree in layout.items()
        if name.endswith("_degree") and degree != 1
    ]
    return ", ".join([f"{ranks} ranks", *split]) if ranks != 1 else "1 rank"


def verify(arguments: list[str]) -> int:
    """0 where every byte is what was saved, 4 where something is not."""
    parser = Parser(
        "checkpoint verify",
        "Read every byte of one checkpoint, or of all of a run, and compare it with the manifest.",
        EXAMPLES,
    )
    parser.add_argument(
        "place", metavar="run|checkpoint", help="a run directory, or one checkpoint"
    )
    options = parser.parse_args(arguments)
    named = place(options.place)
    folders = list(checkpoints_at(named).values()) or [checkpoint_at(named)]
    bad = 0
    for folder in folders:
        reasons = reasons_against(folder)
        bad += bool(reasons)
        print(f"{folder}: {'; '.join(reasons) if reasons else 'ok'}")
    return EXIT_OF_CODE["checkpoint"] if bad else 0


def diff(arguments: list[str]) -> int:
    """0: the same; 1: they differ."""
    parser = Parser(
        "checkpoint diff",
        "Tensors that only one of two checkpoints has, and those that differ.",
        EXAMPLES,
    )
    parser.add_argument("a", help="a checkpoint, or a run directory for its newest one")
    parser.add_argument("b", help="another one")
    parser.add_argument(
        "--names", action="store_true", help="names, types and shapes only, from the manifests"
    )
    options = parser.parse_args(arguments)
    folders = [checkpoint_at(place(named)) for named in (options.a, options.b)]
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
        else checkpoint_copies.in_worker({"do": "diff", "a": str(folders[0]), "b": str(folders[1])})
    )
    return max(values, EXIT_DIFFERS if lines else 0)
