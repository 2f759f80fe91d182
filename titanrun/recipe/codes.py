"""What each problem code means: why it is reported, how to mend it, and a small example of both."""

from dataclasses import dataclass

from titanrun.config.problems import Code


@dataclass(frozen=True, slots=True)
class Meaning:
    """Cause and fix of a problem code; `wrong` and `right` are lines of a recipe, or of a terminal where they begin with $."""

    cause: str
    fix: str
    wrong: str = ""
    right: str = ""


MEANINGS: dict[Code, Meaning] = {
    "syntax": Meaning(
        "the text is not YAML, or not TOML: a bracket or quote is left open, or the indentation does not line up",
        "look at the marked place and at the line before it; text that holds ${...} or a colon goes into quotes",
        "training: {steps: 100",
        "training: {steps: 100}",
    ),
    "encoding": Meaning(
        "the file is not UTF-8, or holds a character that nobody can see, such as a control character",
        "save the file as UTF-8; delete the character, or write its escape in double quotes",
    ),
    "empty": Meaning(
        "the file holds nothing but comments",
        "write a recipe into it; titanrun init writes one to begin with",
    ),
    "file": Meaning(
        "a file is missing, cannot be read or written, exists already, or does not end in .yaml, .yml or .toml",
        "check the path; in `extends` it is relative to the file that names it",
        "extends: bsae.yaml",
        "extends: base.yaml",
    ),
    "tag": Meaning(
        "a YAML tag, such as !!python/object: tags make programs out of data, and recipes hold data only",
        "remove the tag",
        "description: !!str 8",
        'description: "8"',
    ),
    "limit": Meaning(
        "the recipe is larger than anything a person writes: over 1 MiB, 10,000 values, 64 levels, or a number of 4,300 digits",
        "keep data in data files and name their path",
    ),
    "duplicate-key": Meaning(
        "a mapping has the same key twice, and most readers would silently drop one of them",
        "remove one of the two",
        "training: {steps: 100, steps: 200}",
        "training: {steps: 200}",
    ),
    "unknown-key": Meaning(
        "no field has this name here: it is misspelt, belongs in another section, or to another component",
        "take the name that the help suggests; titanrun explain SECTION lists the fields",
        "training: {stepz: 100}",
        "training: {steps: 100}",
    ),
    "unknown-name": Meaning(
        "no component, value or plug-in is called that",
        "take one of the names that the help lists; titanrun ls shows all",
        "optimizer: adamm",
        "optimizer: adamw",
    ),
    "missing-key": Meaning(
        "a field without a default was not written",
        "write it; titanrun explain PATH says what it takes",
        "tokenizer: {name: huggingface}",
        "tokenizer: {name: huggingface, path: assets/Llama-3.1-8B}",
    ),
    "wrong-type": Meaning(
        "the value is of another kind than the field takes; text, numbers and booleans never turn into each other",
        "write the kind that is expected: numbers without quotes, true or false for switches",
        'training: {steps: "100"}',
        "training: {steps: 100}",
    ),
    "ambiguous-number": Meaning(
        "readers of YAML disagree about this number: 010, 1_000, 1:30:00 and 4k mean different things to different programs",
        "write the plain number",
        "training: {steps: 010}",
        "training: {steps: 10}",
    ),
    "out-of-range": Meaning(
        "the value is of the right kind, but the field takes no value that small, large or empty",
        "stay within the range; titanrun explain PATH shows it",
        "optimizer: {lr: -1.0}",
        "optimizer: {lr: 0.001}",
    ),
    "conflict": Meaning(
        "two settings cannot both hold; the name behind the slash is the rule",
        "change one of the places that are shown; titanrun explain RULE says more about that rule",
        "training: {local_batch_size: 8, global_batch_size: 12}",
        "training: {local_batch_size: 8, global_batch_size: 16}",
    ),
    "no-effect": Meaning(
        "a setting was written that nothing will read in this run",
        "remove it, or switch on what would read it",
        "checkpoint: {enable: false, last_save_in_hf: true}",
        "checkpoint: {enable: true, last_save_in_hf: true}",
    ),
    "not-built": Meaning(
        "the recipe language has the field, and this version of titanrun lacks what it asks for",
        "leave it out, or update titanrun",
        "parallelism: {expert_parallel_comm_backend: deepep}",
        "parallelism: {expert_parallel_comm_backend: standard}",
    ),
    "deprecated": Meaning(
        "the key has a new name; the old one is read for two more minor releases",
        "write the new name that the help gives",
    ),
    "version": Meaning(
        "the recipe was written for another version of the recipe language, or a resolved recipe was edited by hand",
        "update titanrun for a newer recipe; take away the first line of an edited resolved recipe to make it your own",
        "version: 2",
        "version: 1",
    ),
    "cycle": Meaning(
        "files extend each other in a ring, or values refer to each other in one",
        "remove one link of the ring that is shown",
        "name: ${description}\ndescription: ${name}",
        "name: ${description}\ndescription: first run",
    ),
    "interpolation": Meaning(
        "a ${...} refers to nothing, to a section, or to an environment variable that is not set",
        "write ${section.key}, ${env:NAME} or ${env:NAME,default}; $${ stands for the characters ${",
        "description: ${training.stepz} steps",
        "description: ${training.steps} steps",
    ),
    "usage": Meaning(
        "the command line is not understood: an unknown option, a missing argument, an override that does not fit the recipe",
        "see titanrun COMMAND --help",
        "$ titanrun train recipe.yaml training.steps=50 training.steps=60",
        "$ titanrun train recipe.yaml training.steps=60",
    ),
    "data": Meaning(
        "a dataset or tokenizer that the recipe names is missing, or does not hold what it should",
        "check the path: it is relative to the folder in which titanrun is started",
        "training: {dataset: {name: tokens, path: nowhere.npy}}",
        "training: {dataset: {name: tokens, path: tokens.npy}}",
    ),
    "checkpoint": Meaning(
        "a checkpoint or a folder of weights is damaged, incomplete, or does not fit the model",
        "go on from an earlier checkpoint, or correct the model section to the one that was saved",
    ),
    "internal": Meaning(
        "titanrun itself failed: this is never your fault",
        "report it with the file that the message names and the output of titanrun doctor",
    ),
}

# what ends a run, or keeps it from starting, and no recipe can tell beforehand
RUN_MEANINGS: dict[str, Meaning] = {
    "another-run": Meaning(
        "the run directory belongs to a run with other numbers: going on in it would mix the two",
        "name another dump_folder, or undo the changes that are shown",
    ),
    "steps-already-done": Meaning(
        "training.steps is below what the run directory has saved: a run cannot be shortened afterwards",
        "ask for at least the saved steps, or name another dump_folder",
    ),
    "stages-start-from-checkpoints": Meaning(
        "a stage starts from the weights of the one before it, and that one saves none",
        "set checkpoint.enable: true, or name in the stage's checkpoint.initial_load_path what it starts from",
    ),
    "stages-share-a-model": Meaning(
        "a stage has a model of other sizes than the stage from whose weights it starts",
        "write the model once, at the top level, or name in the stage's checkpoint.initial_load_path what it starts from",
    ),
    "stages-train-here": Meaning(
        "stages are trained one after the other by the command that was started, on its machine, and a stage is launched elsewhere",
        "train one stage at a time, as RECIPE#ID, with checkpoint.initial_load_path",
    ),
    "run-in-use": Meaning(
        "another process is training in this run directory, and two would overwrite each other's files",
        "wait for it, stop it, or name another dump_folder",
    ),
    "can-be-built": Meaning(
        "the model, the optimizer or another part refused these settings when it was built",
        "the message is the part's own; change the section that is shown",
    ),
    "non-finite": Meaning(
        "the loss or the gradient norm became nan or infinite, and every later step would be lost",
        "lower optimizer.lr, warm up longer, or go on from an earlier checkpoint with other data",
    ),
    "corruption": Meaning(
        "bits differ that must be equal, of a batch computed twice or of copies on two ranks: a machine computes or keeps them wrong",
        "start again, the run goes on from its last checkpoint; where the same machine is named twice, leave it out",
    ),
    "memory": Meaning(
        "the device, or the machine, ran out of memory",
        "lower training.local_batch_size or training.seq_len, or set activation_checkpoint: full",
    ),
    "hang": Meaning(
        "a rank gave no sign of life for longer than the section guard allows, or a collective waited longer than comm allows",
        "logs/stacks-rank-N.txt and logs/rank-N.log say where each rank stood; start the same command again",
    ),
    "disk": Meaning(
        "the disk, or the quota on it, is full, or the disk refuses to be written to",
        "free space, then start the same command again: the run goes on from its last checkpoint",
    ),
}
