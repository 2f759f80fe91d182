"""The JSON Schemas of what titanrun writes for programs: problems, run.json, status.json, metrics lines, resolved.sources.json."""

from typing import Any, get_args

from titanrun.config.problems import Code
from titanrun.recipe.schema import DIALECT

Schema = dict[str, Any]

STATES = ("starting", "running", "finished", "preempted", "failed")
# how metrics.jsonl writes what JSON has no number for
NON_FINITE = ("nan", "inf", "-inf")
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PLACE: Schema = {"type": "integer", "minimum": 1}
DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
METRIC: Schema = {"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]}


def described(schema: Schema, description: str) -> Schema:
    """A schema with the sentence that editors show."""
    return {"description": description, **schema}


def or_null(schema: Schema, description: str | None = None) -> Schema:
    """A schema whose value may be null."""
    found: Schema = {"anyOf": [schema, {"type": "null"}]}
    return found if description is None else described(found, description)


def record(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    """An object with these keys and no other; all but the optional ones are always there."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def titled(title: str, schema: Schema) -> Schema:
    """A whole schema."""
    return {"$schema": DIALECT, "title": title, **schema}


def problem_schema() -> Schema:
    """One line of `titanrun validate --format json`."""
    place = {"file": or_null(TEXT), "line": or_null(PLACE)}
    fix = record({"file": TEXT, "line": PLACE, "col": PLACE, "end_col": PLACE, "replacement": TEXT})
    properties = {
        "code": described(
            {"enum": list(get_args(Code))},
            "What kind of problem it is; titanrun explain CODE says more.",
        ),
        "rule": or_null(TEXT, "The rule that found it; titanrun explain RULE says more."),
        "severity": {"enum": ["error", "warning"]},
        "message": described(TEXT, "What is wrong, with the value."),
        "file": or_null(
            TEXT, "As it was named; <override N> for the N-th change on the command line."
        ),
        "line": or_null(PLACE),
        "col": or_null(PLACE, "Counted in code points from 1."),
        "end_col": or_null(PLACE, "The first column behind the marked text."),
        "path": described(TEXT, "Where in the recipe: converters[0].lr."),
        "got": or_null(TEXT, "The value, cut after 60 characters."),
        "expected": or_null(TEXT),
        "suggestion": or_null(TEXT, "The word that was probably meant."),
        "help": or_null(TEXT, "What to do."),
        "related": described(
            {"type": "array", "items": record({**place, "message": TEXT})},
            "The other places that are involved.",
        ),
        "fix": or_null(
            fix,
            "The correction that validate --fix makes: the text from col up to end_col becomes the replacement.",
        ),
    }
    return titled("titanrun problem", record(properties))


def status_schema() -> Schema:
    """status.json of a run directory."""
    properties = {
        "state": {"enum": list(STATES)},
        "step": described(COUNT, "The last step that is done."),
        "pid": COUNT,
        "host": TEXT,
        "boot_id": or_null(
            TEXT,
            "Which boot of the host: a pid alone may belong to another process after a reboot.",
        ),
        "heartbeat": described(
            {"type": "number"}, "Seconds since 1970; written every second while steps go by."
        ),
        "exit_code": or_null({"type": "integer"}, "Null until the worker ends."),
    }
    return titled("titanrun status.json", record(properties))


def run_schema() -> Schema:
    """run.json of a run directory."""
    start = record(
        {
            "time": described(
                {"type": "string", "format": "date-time"},
                "When it was started, in local time with its offset.",
            ),
            "argv": {"type": "array", "items": TEXT},
            "cwd": TEXT,
            "trust_remote_code": described(
                {"type": "boolean"},
                "Whether the command line let code run that comes with weights.",
            ),
            "seed": COUNT,
            "inputs": described(
                {"type": "array", "items": input_schema()},
                "Every file and folder that the recipe names.",
            ),
            "changes": described(
                {"type": "array", "items": TEXT}, "What differs from the start before, in words."
            ),
            "environment": environment_schema(),
            "decided": described(
                {"type": "object"}, "What only the machine could decide: device, ranks ..."
            ),
            "machine": described(
                {"type": "object"},
                "Device, driver, CUDA, threads ..., as torch and the system tell.",
            ),
        },
        optional=("trust_remote_code", "decided", "machine"),
    )
    starts = described(
        {"type": "array", "items": start}, "Every start of the run, the first one first."
    )
    sha256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    parent = or_null(
        record({"checkpoint": TEXT, "step": COUNT, "recipe": sha256}),
        "The checkpoint that the first weights came from.",
    )
    return titled(
        "titanrun run.json",
        record({"format": {"const": 1}, "name": or_null(TEXT), "parent": parent, "starts": starts}),
    )


def input_schema() -> Schema:
    """A file, or all files below a folder or that a pattern names, at the time of a start."""
    found = {
        "files": described(PLACE, "How many there are."),
        "bytes": COUNT,
        "modified": described(
            {"type": "string", "format": "date-time"}, "The newest time of any of them."
        ),
        "xxh3_128": described(DIGEST, "Of names, sizes and bytes."),
        "sampled": described(
            {"type": "boolean"},
            "Whether only blocks of large files were read, or only some of very many files.",
        ),
        "each": described(
            {"type": "object", "additionalProperties": DIGEST},
            "The digest of each file, where there are few.",
        ),
    }
    return record({"path": TEXT, "absolute": TEXT, **found}, optional=tuple(found))


def environment_schema() -> Schema:
    """What was installed, and the state of the working directory."""
    by_name = {"type": "object", "additionalProperties": TEXT}
    files = described(
        {"type": "object", "additionalProperties": DIGEST}, "The digest of each module."
    )
    git = {
        "commit": TEXT,
        "branch": or_null(TEXT),
        "dirty": or_null({"type": "boolean"}, "Null where git does not say."),
        "diff": or_null(
            TEXT,
            "The file beside run.json that holds what differs from the commit, secrets masked.",
        ),
        "untracked": described(
            {"type": "array", "items": TEXT},
            "Files that git neither knows nor ignores, the first hundred.",
        ),
    }
    properties = {
        "python": TEXT,
        "platform": TEXT,
        "host": TEXT,
        "packages": described(by_name, "Version of every installed package."),
        "code": described(DIGEST, "Of titanrun's own modules, flavors, tiny corpus and tokenizer."),
        "plugins": {
            "type": "array",
            "items": record(
                {"name": TEXT, "package": or_null(TEXT), "version": or_null(TEXT), "files": files}
            ),
        },
        "git": or_null(record(git), "The repository around the working directory."),
    }
    return record(properties)


def metrics_schema() -> Schema:
    """One line of metrics.jsonl."""
    known = {
        "step": described(
            {"type": "integer", "minimum": 1}, "Of two lines of one step, the last counts."
        ),
        "loss": described(METRIC, "Mean over the tokens of the step."),
        "grad_norm": described(METRIC, "Before clipping."),
        "lr": described(METRIC, "Learning rate of the step."),
        "tps": described(METRIC, "Tokens a second on one device."),
        "tokens_seen": METRIC,
        "memory_gib": METRIC,
        "validation/loss": METRIC,
    }
    schema: Schema = {
        "type": "object",
        "properties": known,
        "required": ["step"],
        "additionalProperties": METRIC,
    }
    return titled("titanrun metrics line", schema)


def sources_schema() -> Schema:
    """resolved.sources.json of a run directory."""
    value = record(
        {
            "source": {"enum": ["file", "override", "interpolation", "default", "decided"]},
            "file": TEXT,
            "line": PLACE,
            "column": PLACE,
            "shadowed": described(
                {"type": "array", "items": TEXT},
                "Places whose values this one replaced, nearest first.",
            ),
        },
        optional=("file", "line", "column", "shadowed"),
    )
    by_name = {"type": "object", "additionalProperties": TEXT}
    properties = {
        "format": {"const": 1},
        "argv": {"type": "array", "items": TEXT},
        "versions": described(by_name, "Installed packages that decide what a run does."),
        "files": described(by_name, "sha256 of every file that a value came from."),
        "values": described(
            {"type": "object", "additionalProperties": value},
            "The source of every value, by its path.",
        ),
    }
    return titled("titanrun resolved.sources.json", record(properties))
