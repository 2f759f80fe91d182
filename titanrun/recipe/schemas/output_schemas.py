"""JSON Schemas of the machine-readable output of titanrun.

Problems, run.json, status.json, metrics lines, resolved.sources.json.
"""

from typing import Any, get_args

from titanrun.config.problems import ProblemCode
from titanrun.recipe.schemas.recipe_schema import DIALECT

Schema = dict[str, Any]

STATES = ("starting", "running", "finished", "preempted", "failed")
# spelling in metrics.jsonl of numbers that JSON does not have
NON_FINITE = ("nan", "inf", "-inf")
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
POSITION: Schema = {"type": "integer", "minimum": 1}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
METRIC: Schema = {"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]}


def add_description(schema: Schema, description: str) -> Schema:
    """Return a schema with the description that editors show."""
    return {"description": description, **schema}


def make_nullable(schema: Schema, description: str | None = None) -> Schema:
    """Return a schema whose value may be null."""
    found: Schema = {"anyOf": [schema, {"type": "null"}]}
    return found if description is None else add_description(found, description)


def build_object_schema(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of an object with these keys and no others.

    All keys but the optional ones are required.
    """
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def add_title(title: str, schema: Schema) -> Schema:
    """Return a complete schema with dialect and title."""
    return {"$schema": DIALECT, "title": title, **schema}


def build_problem_schema() -> Schema:
    """Return the schema of one line of `titanrun validate --format json`."""
    place = {"file": make_nullable(TEXT), "line": make_nullable(POSITION)}
    fix = build_object_schema(
        {"file": TEXT, "line": POSITION, "col": POSITION, "end_col": POSITION, "replacement": TEXT}
    )
    properties = {
        "code": add_description(
            {"enum": list(get_args(ProblemCode))},
            "Kind of problem; see titanrun explain CODE.",
        ),
        "rule": make_nullable(TEXT, "Rule that found it; see titanrun explain RULE."),
        "severity": {"enum": ["error", "warning"]},
        "message": add_description(TEXT, "The problem, with the value."),
        "file": make_nullable(
            TEXT, "Name as given; <override N> for the N-th override on the command line."
        ),
        "line": make_nullable(POSITION),
        "col": make_nullable(POSITION, "Counted in code points from 1."),
        "end_col": make_nullable(POSITION, "First column after the marked text."),
        "path": add_description(TEXT, "Path in the recipe, for example converters[0].lr."),
        "got": make_nullable(TEXT, "The value, truncated to 60 characters."),
        "expected": make_nullable(TEXT),
        "suggestion": make_nullable(TEXT, "The word that was probably intended."),
        "help": make_nullable(TEXT, "What to do."),
        "related": add_description(
            {"type": "array", "items": build_object_schema({**place, "message": TEXT})},
            "Other locations that are involved.",
        ),
        "fix": make_nullable(
            fix,
            "Edit that validate --fix makes: the text from col up to end_col is replaced.",
        ),
    }
    return add_title("titanrun problem", build_object_schema(properties))


def build_status_schema() -> Schema:
    """Return the schema of status.json in a run directory."""
    properties = {
        "state": {"enum": list(STATES)},
        "step": add_description(COUNT, "Last completed step."),
        "pid": COUNT,
        "host": TEXT,
        "boot_id": make_nullable(
            TEXT,
            "Id of the host's boot: after a reboot the pid may belong to another process.",
        ),
        "heartbeat": add_description(
            {"type": "number"},
            "Seconds since 1970; written every second while steps progress, or wait for data.",
        ),
        "waiting": make_nullable(
            build_object_schema({"for": {"enum": ["data"]}, "source": TEXT, "seconds": COUNT}),
            "What a rank waits for before the next step, and how long; null while steps progress.",
        ),
        "exit_code": make_nullable({"type": "integer"}, "Null until the worker ends."),
        "signal": add_description(
            TEXT, "Name of the signal that stopped a preempted run, such as SIGINT for Ctrl-C."
        ),
    }
    # others write status.json, too
    schema = build_object_schema(properties, optional=("waiting", "signal"))
    return add_title("titanrun status.json", schema)


def build_start_schema() -> Schema:
    """Return the schema of one start in run.json."""
    return build_object_schema(
        {
            "time": add_description(
                {"type": "string", "format": "date-time"},
                "Time of the start, in local time with its offset.",
            ),
            "argv": {"type": "array", "items": TEXT},
            "cwd": TEXT,
            "trust_remote_code": add_description(
                {"type": "boolean"},
                "Whether the command line allowed code that comes with weights to run.",
            ),
            "seed": COUNT,
            "inputs": add_description(
                {"type": "array", "items": build_input_schema()},
                "Every file and folder that the recipe names.",
            ),
            "changes": add_description(
                {"type": "array", "items": TEXT}, "Differences from the previous start, as text."
            ),
            "environment": build_environment_schema(),
            "previous_heartbeat": add_description(
                {"type": "number"},
                "When the run was last alive before this start, in seconds since 1970.",
            ),
            "decided": add_description(
                {"type": "object"}, "Values that depend on the machine: device, ranks ..."
            ),
            "machine": add_description(
                {"type": "object"},
                "Device, driver, CUDA, threads ..., as reported by torch and the system.",
            ),
            "parameters": add_description(
                build_object_schema({"total": COUNT, "trainable": COUNT}),
                "Parameters of the model, and those of them that are trained.",
            ),
        },
        optional=("trust_remote_code", "previous_heartbeat", "decided", "machine", "parameters"),
    )


def build_group_change_schema() -> Schema:
    """Return the schema of a replica group that joined, left or took over a state."""
    return build_object_schema(
        {
            "step": add_description(COUNT, "Steps that were done."),
            "event": {"enum": ["joined", "left", "healed"]},
            "group": COUNT,
            "groups": make_nullable(COUNT, "Groups that took part in the next step."),
        }
    )


def build_run_schema() -> Schema:
    """Return the schema of run.json in a run directory."""
    starts = add_description(
        {"type": "array", "items": build_start_schema()}, "All starts of the run in order."
    )
    sha256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    parent = make_nullable(
        build_object_schema(
            {
                "run": make_nullable(TEXT),
                "checkpoint": TEXT,
                "step": COUNT,
                "tokens": make_nullable(COUNT),
                "recipe": sha256,
            },
            # not in records of earlier versions
            optional=("run", "tokens"),
        ),
        "Checkpoint that the initial weights came from.",
    )
    return add_title(
        "titanrun run.json",
        build_object_schema(
            {
                "format": {"const": 1},
                "id": add_description(
                    {"type": "string", "pattern": "^[0-9a-f]{32}$"},
                    "Identity of the run, which its checkpoints carry.",
                ),
                "name": make_nullable(TEXT),
                "parent": parent,
                "starts": starts,
                "refused_starts": add_description(
                    {"type": "array", "items": build_start_schema()},
                    "Starts that failed before their first step and left the run as it was.",
                ),
                "groups": add_description(
                    {"type": "array", "items": build_group_change_schema()},
                    "What changed which replica groups took part, since the run began.",
                ),
            },
            optional=("id", "refused_starts", "groups"),
        ),
    )


def build_input_schema() -> Schema:
    """Return the schema of an input file, folder or pattern at the time of a start."""
    found = {
        "files": add_description(POSITION, "Number of files."),
        "bytes": COUNT,
        "modified": add_description(
            {"type": "string", "format": "date-time"}, "Newest modification time of any file."
        ),
        "xxh3_128": add_description(DIGEST, "Digest of names, sizes and bytes."),
        "sampled": add_description(
            {"type": "boolean"},
            "Whether only blocks of large files were read, or only some of very many files.",
        ),
        "each": add_description(
            {"type": "object", "additionalProperties": DIGEST},
            "Digest of each file, if there are few.",
        ),
    }
    return build_object_schema({"path": TEXT, "absolute": TEXT, **found}, optional=tuple(found))


def build_environment_schema() -> Schema:
    """Return the schema of the installed software and the state of the working directory."""
    by_name = {"type": "object", "additionalProperties": TEXT}
    files = add_description(
        {"type": "object", "additionalProperties": DIGEST}, "Digest of each module."
    )
    git = {
        "commit": TEXT,
        "branch": make_nullable(TEXT),
        "dirty": make_nullable({"type": "boolean"}, "Null if unknown."),
        "diff": make_nullable(
            TEXT,
            "File next to run.json with the diff to the commit, secrets redacted.",
        ),
        "untracked": add_description(
            {"type": "array", "items": TEXT},
            "Files that git neither tracks nor ignores, the first hundred.",
        ),
    }
    properties = {
        "python": TEXT,
        "platform": TEXT,
        "host": TEXT,
        "packages": add_description(by_name, "Version of every installed package."),
        "code": add_description(
            DIGEST, "Digest of titanrun's own modules, flavors, tiny corpus and tokenizer."
        ),
        "plugins": {
            "type": "array",
            "items": build_object_schema(
                {
                    "name": TEXT,
                    "package": make_nullable(TEXT),
                    "version": make_nullable(TEXT),
                    "files": files,
                }
            ),
        },
        "git": make_nullable(
            build_object_schema(git), "The repository around the working directory."
        ),
    }
    return build_object_schema(properties)


def build_metrics_schema() -> Schema:
    """Return the schema of one line of metrics.jsonl."""
    known = {
        "step": add_description(
            {"type": "integer", "minimum": 1}, "If a step has two lines, the last one counts."
        ),
        "loss": add_description(METRIC, "Mean over the tokens of the step."),
        "grad_norm": add_description(METRIC, "Before clipping."),
        "lr": add_description(METRIC, "Learning rate of the step."),
        "tps": add_description(METRIC, "Tokens per second on one device."),
        "tokens_seen": METRIC,
        "memory_gib": METRIC,
        "validation/loss": METRIC,
        "validation/accuracy": add_description(
            METRIC,
            "Share of the held-out tokens in the loss that the model predicts first; for losses "
            "that compare replies, share of the pairs or replies that it judges rightly.",
        ),
    }
    schema: Schema = {
        "type": "object",
        "properties": known,
        "required": ["step"],
        "additionalProperties": METRIC,
    }
    return add_title("titanrun metrics line", schema)


def build_sources_schema() -> Schema:
    """Return the schema of resolved.sources.json in a run directory."""
    value = build_object_schema(
        {
            "source": {"enum": ["file", "override", "interpolation", "default", "decided"]},
            "file": TEXT,
            "line": POSITION,
            "column": POSITION,
            "shadowed": add_description(
                {"type": "array", "items": TEXT},
                "Locations of the values that this one replaced, nearest first.",
            ),
        },
        optional=("file", "line", "column", "shadowed"),
    )
    by_name = {"type": "object", "additionalProperties": TEXT}
    properties = {
        "format": {"const": 1},
        "argv": {"type": "array", "items": TEXT},
        "versions": add_description(by_name, "Versions of installed packages that affect a run."),
        "files": add_description(by_name, "sha256 of every file that a value came from."),
        "values": add_description(
            {"type": "object", "additionalProperties": value},
            "The source of every value, by its path.",
        ),
    }
    return add_title("titanrun resolved.sources.json", build_object_schema(properties))
