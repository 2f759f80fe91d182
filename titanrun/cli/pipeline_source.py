"""Source of a program for datatrove. Values stand in constants, written by repr alone."""

from collections.abc import Mapping
from typing import Any

HEAD = '''"""Tokenize the texts of a recipe of titanrun with datatrove.

`titanrun data build --pipeline` wrote this file and started nothing. Read it, then run it with a
Python that has datatrove and tokenizers, again if tasks failed: finished ones stay as they are.
"""
'''
BODY = '''

def check_tokenizer():
    """End the program if the tokenizer is not that of the recipe."""
    if hashlib.sha256(Path(TOKENIZER).read_bytes()).hexdigest() != TOKENIZER_SHA256:
        raise SystemExit(f"{TOKENIZER} has changed")
    added = [token for _, token in BEGIN + END]
    if Tokenizer.from_file(TOKENIZER).encode("").ids != added:
        raise SystemExit(f"{TOKENIZER} does not add {BEGIN} and {END}")


class TextReader(Reader):
    """Texts of a column. Consecutive tasks read consecutive files, as the recipe orders them.

    A record without text ends the task, where datatrove's own reader would leave it out. Methods
    import what they use: a job of Slurm unpickles the reader without the globals of this file.
    """

    def __init__(self, folder, files, column):
        super().__init__(folder, text_key=column)
        self.files = files

    def run(self, data=None, rank=0, world_size=1):
        first, last = (len(self.files) * at // world_size for at in (rank, rank + 1))
        for document in self.read_files_shard(self.files[first:last]):
            self.update_doc_stats(document)
            yield document

    def read_file(self, filepath):
        from datatrove.data import Document

        for number, text in enumerate(self.read_texts(filepath), start=1):
            if not isinstance(text, str):
                raise ValueError(f"{filepath}, record {number}: no text in {self.text_key!r}")
            yield Document(text, f"{filepath}/{number}")
'''
PIPELINE = '''

def build_pipeline():
    """Return the steps of each task."""
    return [
        TextReader(FOLDER, FILES, COLUMN),
        DocumentTokenizer(
            OUTPUT,
            TOKENIZER,
            # the file of the tokenizer adds BEGIN and END itself
            eos_token=None,
            save_index=True,
            save_final_metadata=True,
            # titanrun shuffles sequences when it trains
            shuffle_documents=False,
            shuffle_chunk_size=None,
            seed=SEED,
        ),
    ]


def build_executor():
    """Return what runs the tasks, not started."""
'''
END = """

if __name__ == "__main__":
    check_tokenizer()
    build_executor().run()
"""

READERS: Mapping[str, tuple[str, str]] = {
    ".jsonl": (
        "JsonlReader",
        """
        import json

        with self.data_folder.open(
            filepath, "rt", compression="infer", encoding="utf-8-sig"
        ) as lines:
            for line in lines:
                if not line.isspace():
                    yield json.loads(line)[self.text_key]
""",
    ),
    ".csv": (
        "CSVReader",
        """
        import csv

        # long documents are one value
        csv.field_size_limit(2**26)
        with self.data_folder.open(
            filepath, "rt", compression="infer", encoding="utf-8-sig"
        ) as lines:
            for record in csv.DictReader(lines, strict=True):
                if None in record or None in record.values():
                    raise ValueError(f"{filepath}: {record} is not as wide as the header")
                yield record[self.text_key]
""",
    ),
    ".parquet": (
        "ParquetReader",
        """
        from pyarrow import parquet

        with self.data_folder.open(filepath, "rb") as file, parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024, columns=[self.text_key]):
                yield from batch.column(self.text_key).to_pylist()
""",
    ),
}
"""Reader of datatrove, and body of `read_texts`, by suffix of the files."""

EXECUTORS: Mapping[str, tuple[str, str]] = {
    "local": (
        "LocalPipelineExecutor",
        """    return LocalPipelineExecutor(
        build_pipeline(),
        tasks=TASKS,
        # processes at a time
        workers=min(TASKS, os.cpu_count() or 1),
        logging_dir=LOGS,
    )
""",
    ),
    "slurm": (
        "SlurmPipelineExecutor",
        """    return SlurmPipelineExecutor(
        build_pipeline(),
        tasks=TASKS,
        time=TIME,
        partition=PARTITION,
        qos=QOS,
        sbatch_args=SBATCH_ARGS,
        cpus_per_task=1,
        mem_per_cpu_gb=2,
        job_name="tokenize",
        logging_dir=LOGS,
    )
""",
    ),
    "ray": (
        "RayPipelineExecutor",
        """    return RayPipelineExecutor(
        build_pipeline(), tasks=TASKS, cpus_per_task=1, mem_per_cpu_gb=2, logging_dir=LOGS
    )
""",
    ),
}
"""Class of datatrove, and the end of `build_executor`, by name."""


def format_pipeline(values: Mapping[str, Any], *, suffix: str, executor: str) -> str:
    """Return the program.

    Args:
        values: Value of each constant.
        suffix: Suffix of the files, in READERS.
        executor: What runs the tasks, in EXECUTORS.
    """
    reader, read_texts = READERS[suffix]
    runner, build = EXECUTORS[executor]
    lines = [
        HEAD,
        "import hashlib",
        *(["import os"] if "os." in build else []),
        "from pathlib import Path",
        "",
        f"from datatrove.executor import {runner}",
        f"from datatrove.pipeline.readers import {reader}",
        "from datatrove.pipeline.tokens import DocumentTokenizer",
        "from tokenizers import Tokenizer",
        "",
        *(f"{name} = {format_literal(value)}" for name, value in values.items()),
    ]
    body = BODY.replace("(Reader)", f"({reader})")
    method = f"\n    def read_texts(self, filepath):{read_texts}"
    return "\n".join(lines) + "\n" + "".join([body, method, PIPELINE, build, END])


def format_literal(value: object) -> str:
    """Return a value as Python writes it, a list with one element a line."""
    if isinstance(value, list) and value:
        return "[\n" + "".join(f"    {item!r},\n" for item in value) + "]"
    return repr(value)
