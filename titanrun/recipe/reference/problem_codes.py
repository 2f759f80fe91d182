"""Documentation of the problem codes: cause, fix and a small example of both."""

from dataclasses import dataclass

from titanrun.config.problems import ProblemCode


@dataclass(frozen=True, slots=True)
class CodeDocumentation:
    """Cause and fix of a problem code.

    `wrong` and `right` are lines of a recipe, or of a terminal if they begin with $.
    """

    cause: str
    fix: str
    wrong: str = ""
    right: str = ""


PROBLEM_CODES: dict[ProblemCode, CodeDocumentation] = {
    "syntax": CodeDocumentation(
        (
            "the text is not valid YAML or TOML: a bracket or quote is not closed, or the "
            "indentation is inconsistent"
        ),
        (
            "check the marked position and the line before it; quote text that contains ${...} "
            "or a colon"
        ),
        "training: {steps: 100",
        "training: {steps: 100}",
    ),
    "encoding": CodeDocumentation(
        "the file is not UTF-8, or contains an invisible character, such as a control character",
        "save the file as UTF-8; delete the character, or write its escape in double quotes",
    ),
    "empty": CodeDocumentation(
        "the file contains nothing but comments",
        "write a recipe into it; titanrun init writes a starter recipe",
    ),
    "file": CodeDocumentation(
        (
            "a file is missing, cannot be read or written, exists already, or does not end in "
            ".yaml, .yml or .toml"
        ),
        "check the path; in `extends` it is relative to the file that names it",
        "extends: bsae.yaml",
        "extends: base.yaml",
    ),
    "tag": CodeDocumentation(
        "a YAML tag, such as !!python/object: tags can run code, but recipes contain data only",
        "remove the tag",
        "description: !!str 8",
        'description: "8"',
    ),
    "limit": CodeDocumentation(
        "the recipe exceeds a limit: 1 MiB, 10,000 values, 64 levels, or 4,300 digits in a number",
        "move data to data files and name their path",
    ),
    "duplicate-key": CodeDocumentation(
        "a mapping has the same key twice: most parsers would silently drop one of them",
        "remove one of the two",
        "training: {steps: 100, steps: 200}",
        "training: {steps: 200}",
    ),
    "unknown-key": CodeDocumentation(
        "no field has this name here: it is misspelt, or belongs to another section or component",
        "use the name that the help suggests; titanrun explain SECTION lists the fields",
        "training: {stepz: 100}",
        "training: {steps: 100}",
    ),
    "unknown-name": CodeDocumentation(
        "no component, value or plug-in has this name",
        "use one of the names that the help lists; titanrun ls shows all",
        "optimizer: adamm",
        "optimizer: adamw",
    ),
    "missing-key": CodeDocumentation(
        "a field without a default was not written",
        "write it; titanrun explain PATH shows which values it accepts",
        "training: {dataset: {name: tokens}}",
        "training: {dataset: {name: tokens, path: tokens.npy}}",
    ),
    "wrong-type": CodeDocumentation(
        (
            "the value has another type than the field; text, numbers and booleans are not "
            "converted into each other"
        ),
        "write the expected type: numbers without quotes, true or false for booleans",
        'training: {steps: "100"}',
        "training: {steps: 100}",
    ),
    "ambiguous-number": CodeDocumentation(
        (
            "YAML parsers disagree about this number: 010, 1_000, 1:30:00 and 4k are read "
            "differently by different programs"
        ),
        "write the plain number",
        "training: {steps: 010}",
        "training: {steps: 10}",
    ),
    "out-of-range": CodeDocumentation(
        "the value has the right type, but is too small, too large or empty",
        "stay within the range; titanrun explain PATH shows it",
        "optimizer: {lr: -1.0}",
        "optimizer: {lr: 0.001}",
    ),
    "conflict": CodeDocumentation(
        "two settings contradict each other; the name after the slash is the rule",
        "change one of the values shown; titanrun explain RULE describes the rule",
        "training: {local_batch_size: 8, global_batch_size: 12}",
        "training: {local_batch_size: 8, global_batch_size: 16}",
    ),
    "no-effect": CodeDocumentation(
        "a setting was written that has no effect in this run",
        "remove it, or enable what would use it",
        "checkpoint: {enable: false, last_save_in_hf: true}",
        "checkpoint: {enable: true, last_save_in_hf: true}",
    ),
    "slow": CodeDocumentation(
        "the setting works, but is usually slower than what it replaces",
        "follow the help, or drop the setting",
    ),
    "not-built": CodeDocumentation(
        (
            "the recipe language has the field, but this version of titanrun does not implement "
            "the value"
        ),
        "remove it, or update titanrun",
        "parallelism: {expert_parallel_comm_backend: deepep}",
        "parallelism: {expert_parallel_comm_backend: standard}",
    ),
    "deprecated": CodeDocumentation(
        "the key has a new name; the old one is accepted for two more minor releases",
        "use the new name from the help",
    ),
    "version": CodeDocumentation(
        (
            "the recipe was written for another version of the recipe language, or a resolved "
            "recipe was edited by hand"
        ),
        (
            "update titanrun to read a newer recipe; remove the first line of an edited resolved "
            "recipe to turn it into an ordinary recipe"
        ),
        "version: 2",
        "version: 1",
    ),
    "cycle": CodeDocumentation(
        "files extend each other, or values refer to each other, in a cycle",
        "remove one link of the cycle shown",
        "name: ${description}\ndescription: ${name}",
        "name: ${description}\ndescription: first run",
    ),
    "interpolation": CodeDocumentation(
        "a ${...} refers to nothing, to a section, or to an environment variable that is not set",
        ("write ${section.key}, ${env:NAME} or ${env:NAME,default}; $${ is the text ${"),
        "description: ${training.stepz} steps",
        "description: ${training.steps} steps",
    ),
    "usage": CodeDocumentation(
        (
            "the command line is invalid: an unknown option, a missing argument, or an override "
            "that does not fit the recipe"
        ),
        "see titanrun COMMAND --help",
        "$ titanrun train recipe.yaml training.steps=50 training.steps=60",
        "$ titanrun train recipe.yaml training.steps=60",
    ),
    "data": CodeDocumentation(
        "a dataset or tokenizer that the recipe names is missing, or has unexpected content",
        "check the path: it is relative to the folder in which titanrun was started",
        "training: {dataset: {name: tokens, path: nowhere.npy}}",
        "training: {dataset: {name: tokens, path: tokens.npy}}",
    ),
    "checkpoint": CodeDocumentation(
        "a checkpoint or a folder of weights is damaged, incomplete, or does not fit the model",
        "resume from an earlier checkpoint, or change section model to match the checkpoint",
    ),
    "quorum": CodeDocumentation(
        "a replica group found no lighthouse, or too few other groups for a step, in time",
        "start the lighthouse or the missing groups again; the same command resumes the run",
    ),
    "internal": CodeDocumentation(
        "titanrun itself failed: this is a bug, not an error in your recipe",
        "report it with the file that the message names and the output of titanrun doctor",
    ),
}

# reasons why a run ends or does not start that cannot be found in the recipe beforehand
RUN_END_CODES: dict[str, CodeDocumentation] = {
    "another-run": CodeDocumentation(
        "the run directory belongs to a run of another recipe that has made steps: resuming in it "
        "would mix the two",
        "name another dump_folder, or undo the changes shown",
    ),
    "adapted-modules-stay": CodeDocumentation(
        "the run directory has adapters at other modules, and saved adapters stay where they are",
        "write the saved target_modules, or merge the adapters and train new ones, with the "
        "commands shown",
    ),
    "rank-stays": CodeDocumentation(
        "the run directory has adapters of another rank, and saved adapters keep their shapes",
        "write the saved rank, or merge the adapters and train new ones, with the commands shown",
    ),
    "steps-already-done": CodeDocumentation(
        (
            "training.steps is below the last saved step of the run directory, or shortens an "
            "unfinished run to that step, so that nothing is left to train"
        ),
        "set more than the saved steps, or name another dump_folder",
    ),
    "schedule-ended": CodeDocumentation(
        (
            "further steps of a run lie behind the end of its learning-rate schedule, whose floor "
            "is 0: they would change nothing"
        ),
        "set lr_scheduler.total_steps to the new length, or fork the run",
    ),
    "stages-start-from-checkpoints": CodeDocumentation(
        "a stage starts from the weights of the previous one, which saves no checkpoint",
        "set checkpoint.enable: true, or set the stage's checkpoint.initial_load_path",
    ),
    "stages-share-a-model": CodeDocumentation(
        "the model sizes of a stage differ from those of the stage whose weights it starts from",
        "write the model once, at the top level, or set the stage's checkpoint.initial_load_path",
    ),
    "stages-train-here": CodeDocumentation(
        (
            "stages are trained consecutively on the machine where the command was started, but "
            "a stage is launched elsewhere"
        ),
        "train one stage at a time, as RECIPE#ID, with checkpoint.initial_load_path",
    ),
    "run-in-use": CodeDocumentation(
        "another process is training in this run directory: two would overwrite each other's files",
        "wait for it, stop it, or name another dump_folder",
    ),
    "can-be-built": CodeDocumentation(
        (
            "the model, the optimizer or another component raised an error for these settings "
            "when it was built"
        ),
        "the message comes from that component; change the section shown",
    ),
    "end-of-turn-embedding": CodeDocumentation(
        (
            "the token that ends replies has an embedding that the base model never trained, and "
            "adapters leave embeddings as they are: the model could hardly recognize the token"
        ),
        "train all weights, or take a chat template whose tokens the model knows",
    ),
    "non-finite": CodeDocumentation(
        "the loss or the gradient norm became NaN or infinite: every later step would be lost",
        "lower optimizer.lr, warm up longer, or resume from an earlier checkpoint with other data",
    ),
    "corruption": CodeDocumentation(
        (
            "bits differ that must be equal, of a batch computed twice or of copies on two "
            "ranks: a machine computes or stores them incorrectly"
        ),
        (
            "start again, the run resumes from its last checkpoint; exclude a machine that is "
            "reported twice"
        ),
    ),
    "memory": CodeDocumentation(
        "the device, or the machine, ran out of memory",
        "lower training.local_batch_size or training.seq_len, or set activation_checkpoint: full",
    ),
    "killed": CodeDocumentation(
        (
            "a signal ended a rank before it could report: SIGKILL often because the machine ran "
            "out of memory, SIGSEGV and SIGABRT because a library crashed"
        ),
        (
            "see dmesg, and the rank's log; start the same command again, the run resumes from its "
            "last checkpoint"
        ),
    ),
    "hang": CodeDocumentation(
        (
            "a rank sent no heartbeat for longer than section guard allows, or a collective "
            "waited longer than section comm allows"
        ),
        (
            "logs/stacks-rank-N.txt and logs/rank-N.log show where each rank stopped; start the "
            "same command again"
        ),
    ),
    "disk": CodeDocumentation(
        "the disk or its quota is full, or the disk cannot be written",
        "free space, then start the same command again: the run resumes from its last checkpoint",
    ),
    "source-unreachable": CodeDocumentation(
        (
            "requests to a remote file, or to a list of files, failed for as long as "
            "training.dataloader.retry_timeout: no answer, a closed connection, or an error of the "
            "server"
        ),
        (
            "start the same command again when the server answers: the run resumes after the last "
            "step, which was saved; set a longer training.dataloader.retry_timeout"
        ),
    ),
    "source-refused": CodeDocumentation(
        "a server refused a remote file, also at a newly signed address",
        "check the credentials in the environment, such as HF_TOKEN, then start again",
    ),
    "source-gone": CodeDocumentation(
        (
            "a file of a stream is not, or no longer, at its path or address, or a link among the "
            "files of a dataset leads nowhere"
        ),
        "check the path or address, or restore the file and start again",
    ),
    "source-changed": CodeDocumentation(
        (
            "a file has another size or version than when the stream was opened: its records "
            "would not be those that the run goes on with"
        ),
        "restore the file and start again, or start a new run with the new data",
    ),
    "source-damaged": CodeDocumentation(
        (
            "the content of a compressed, parquet or arrow file of a stream cannot be read, a "
            "remote one even after it was fetched again, or more files are damaged than "
            "max_bad_files allows"
        ),
        (
            "fetch or write the file again, or set bad_files: skip and max_bad_files on the "
            "dataset to leave out the rest of such files"
        ),
    ),
    "source-without-ranges": CodeDocumentation(
        "a web server sends whole files only, or does not say how large they are",
        "download the files and set their path, or use another server",
    ),
}
