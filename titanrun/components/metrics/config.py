"""The metrics section, and the tracker slot."""

from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Len
from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict
from titanrun.config.fields import bookkeeping, component, section
from titanrun.config.types import NonNegativeFloat, NonNegativeInt, PositiveInt, RunPath, Text


def without_credentials(text: str) -> str:
    """An address without a user or password in it."""
    if "@" in text.partition("://")[2].partition("/")[0]:
        help = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
        raise PydanticCustomError(
            "an_address_without_credentials", "holds credentials", {"help": help}
        )
    return text


TrackingAddress = Annotated[str, Len(1), AfterValidator(without_credentials)]


class TrackerConfig(ComponentConfig):
    """A place that receives every logged metric beside metrics.jsonl."""

    slot: ClassVar = "trackers"
    is_slot: ClassVar = True


class TensorBoardConfig(TrackerConfig):
    """TensorBoard event files. Needs the extra `tensorboard`."""

    name: Literal["tensorboard"] = bookkeeping("tensorboard", resume=True)
    builds: ClassVar = "titanrun.components.metrics.tensorboard:TensorBoardTracker"
    extra: ClassVar = "tensorboard"
    folder: RunPath = bookkeeping("tensorboard", resume=True)
    """Folder of the event files inside the run directory."""


class CsvConfig(TrackerConfig):
    """A table metrics.csv: a row a logged step, a column a metric, and the hash of the recipe in each row."""

    name: Literal["csv"] = bookkeeping("csv", resume=True)
    builds: ClassVar = "titanrun.components.metrics.csv_file:CsvTracker"
    folder: RunPath = bookkeeping("csv", resume=True)
    """Folder of metrics.csv inside the run directory."""


class WandbConfig(TrackerConfig):
    """A run of Weights & Biases. Needs the extra `wandb`, and online a key: WANDB_API_KEY, or what `wandb login` keeps."""

    name: Literal["wandb"] = bookkeeping("wandb", resume=True)
    builds: ClassVar = "titanrun.components.metrics.wandb:WandbTracker"
    extra: ClassVar = "wandb"
    project: Text = bookkeeping("titanrun", resume=True)
    """Project that the run is shown in."""
    entity: Text | None = bookkeeping(None, resume=True, examples=["my-team"])
    """User or team that owns the project; null: the default one of the key."""
    group: Text | None = bookkeeping(None, resume=True, examples=["ablations"])
    """Runs that are shown together; null: none."""
    tags: tuple[Text, ...] = bookkeeping((), resume=True, examples=[["8b", "baseline"]])
    """Words to find the run by."""
    mode: Literal["online", "offline"] = bookkeeping("online", resume=True)
    """`offline` writes files only, for `wandb sync`."""
    folder: RunPath = bookkeeping("wandb", resume=True)
    """Folder of the library's files inside the run directory."""


class MlflowConfig(TrackerConfig):
    """A run of MLflow. Needs the extra `mlflow`; a server's credentials come from the environment, as MLflow reads them."""

    name: Literal["mlflow"] = bookkeeping("mlflow", resume=True)
    builds: ClassVar = "titanrun.components.metrics.mlflow:MlflowTracker"
    extra: ClassVar = "mlflow"
    tracking_uri: TrackingAddress | None = bookkeeping(
        None, resume=True, examples=["https://mlflow.example.com"]
    )
    """Tracking server or database; null: the database mlflow.db in `folder`."""
    experiment: Text = bookkeeping("titanrun", resume=True)
    """Experiment that the run belongs to; made where it is not there."""
    folder: RunPath = bookkeeping("mlflow", resume=True)
    """Folder inside the run directory for the database, its artifacts, and the id of the run."""


class TrackioConfig(TrackerConfig):
    """A run of Trackio, where the library keeps its projects on this machine, or in a Space. Needs the extra `trackio`."""

    name: Literal["trackio"] = bookkeeping("trackio", resume=True)
    builds: ClassVar = "titanrun.components.metrics.trackio:TrackioTracker"
    extra: ClassVar = "trackio"
    project: Text = bookkeeping("titanrun", resume=True)
    """Project that the run is shown in."""
    group: Text | None = bookkeeping(None, resume=True, examples=["ablations"])
    """Runs that are shown together; null: none."""
    space_id: Text | None = bookkeeping(None, resume=True, examples=["my-team/runs"])
    """Space of the Hugging Face Hub that gets the metrics; null: this machine, or where TRACKIO_SPACE_ID and TRACKIO_SERVER_URL say."""
    folder: RunPath = bookkeeping("trackio", resume=True)
    """Folder inside the run directory for the id of the run."""


class PictureSamplesConfig(Config):
    """How pictures are drawn while a model of pictures is trained, from the same noise every time."""

    steps: PositiveInt = bookkeeping(20, resume=True)
    """Steps from noise to a picture."""
    guidance: NonNegativeFloat | None = bookkeeping(None, resume=True, examples=[4.0])
    """How many times as far to go as from the velocity without a caption to the one with it; null: the latter alone, and a model that has
    an embedding of it is told what it was told in training."""
    seed: NonNegativeInt = bookkeeping(0, resume=True)
    """Seed of the first picture's noise; the next ones count up."""


class SamplesConfig(Config):
    """What the model makes of prompts while it is trained: the likeliest tokens after each, in the log and in samples.jsonl, or of a model
    of pictures one picture each, in samples/ as PNG files."""

    prompts: tuple[Text, ...] = bookkeeping((), resume=True, examples=[["Once upon a time"]])
    """What the texts begin with, or captions of the pictures; none: nothing is written."""
    freq: PositiveInt = bookkeeping(100, unit="steps", resume=True)
    """Steps between the samples."""
    max_new_tokens: PositiveInt = bookkeeping(32, unit="tokens", resume=True)
    """Tokens of a text, at most."""
    chat: bool = bookkeeping(False, resume=True)
    """Whether a prompt is what a user says, in the tokenizer's chat template."""
    pictures: PictureSamplesConfig = section(PictureSamplesConfig)


class MetricsConfig(Config):
    """What is logged, how often, and to where."""

    log_freq: PositiveInt = bookkeeping(10, unit="steps", resume=True)
    """Steps between logged lines; the first step is always logged."""
    disable_color_printing: bool = bookkeeping(False, resume=True)
    """Whether the console shows no colours; NO_COLOR does the same for one shell."""
    save_for_all_ranks: bool = bookkeeping(False, resume=True)
    """Whether every rank writes its metrics, into `ranks/rank-<rank>/`; else only the first, whose loss is that of all."""
    trackers: tuple[TrackerConfig, ...] = component(())
    """Further receivers of the metrics; metrics.jsonl is always written."""
    samples: SamplesConfig = section(SamplesConfig)

    @model_validator(mode="after")
    def no_tracker_twice(self) -> Self:
        """Two that write into one folder would write into the same files."""
        places = [(tracker.name, getattr(tracker, "folder", tracker)) for tracker in self.trackers]
        for number, place in enumerate(places):
            if place in places[:number]:
                first = places.index(place)
                same = self.trackers[first] == self.trackers[number]
                what = (
                    f"are the same: {place[0]}"
                    if same
                    else f"both write into the folder '{place[1]}': {place[0]}"
                )
                message = f"trackers {first + 1} and {number + 1} {what}"
                raise conflict(
                    message, "trackers", help="remove one, or let them write into different folders"
                )
        return self
