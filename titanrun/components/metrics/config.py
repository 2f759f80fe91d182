"""The metrics section and the tracker slot."""

from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Len
from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import bookkeeping, component, section
from titanrun.config.types import NonNegativeFloat, NonNegativeInt, PositiveInt, RunPath, Text
from titanrun.distributed.spec.read_conditions import HAS_EXPERTS


def validate_tracking_uri(text: str) -> str:
    """Return a URI without user or password."""
    if "@" in text.partition("://")[2].partition("/")[0]:
        hint = (
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, "
            "or MLFLOW_TRACKING_TOKEN, in the environment"
        )
        raise PydanticCustomError(
            "an_address_without_credentials", "holds credentials", {"help": hint}
        )
    return text


TrackingUri = Annotated[str, Len(1), AfterValidator(validate_tracking_uri)]


class TrackerConfig(ComponentConfig):
    """Receiver of every logged metric, in addition to metrics.jsonl."""

    slot: ClassVar = "trackers"
    is_slot: ClassVar = True
    builds_what: ClassVar = "an object with log(step, values) and close()"
    built_attributes: ClassVar = ("log", "close")
    name: str = bookkeeping()


class TensorBoardConfig(TrackerConfig):
    """TensorBoard event files. Needs the extra `tensorboard`."""

    name: Literal["tensorboard"] = bookkeeping("tensorboard", resume=True)
    builds: ClassVar = "titanrun.components.metrics.tensorboard_tracker:TensorBoardTracker"
    extra: ClassVar = "tensorboard"
    folder: RunPath = bookkeeping("tensorboard", resume=True)
    """Folder of the event files inside the run directory."""


class CsvConfig(TrackerConfig):
    """A table metrics.csv with a row per logged step and a column per metric.

    Each row also has the hash of the recipe.
    """

    name: Literal["csv"] = bookkeeping("csv", resume=True)
    builds: ClassVar = "titanrun.components.metrics.csv_tracker:CsvTracker"
    folder: RunPath = bookkeeping("csv", resume=True)
    """Folder of metrics.csv inside the run directory."""


class WandbConfig(TrackerConfig):
    """A run of Weights & Biases. Needs the extra `wandb`.

    Online, it needs a key: WANDB_API_KEY, or the one that `wandb login` stores.
    """

    name: Literal["wandb"] = bookkeeping("wandb", resume=True)
    builds: ClassVar = "titanrun.components.metrics.wandb_tracker:WandbTracker"
    extra: ClassVar = "wandb"
    project: Text = bookkeeping("titanrun", resume=True)
    """Project of the run."""
    entity: Text | None = bookkeeping(None, resume=True, examples=["my-team"])
    """User or team that owns the project. If null, the default of the key."""
    group: Text | None = bookkeeping(None, resume=True, examples=["ablations"])
    """Group of the run. Set to null to disable."""
    tags: tuple[Text, ...] = bookkeeping((), resume=True, examples=[["8b", "baseline"]])
    """Tags of the run."""
    mode: Literal["online", "offline"] = bookkeeping("online", resume=True)
    """`offline` writes files only, for `wandb sync`."""
    folder: RunPath = bookkeeping("wandb", resume=True)
    """Folder of the library's files inside the run directory."""


class MlflowConfig(TrackerConfig):
    """A run of MLflow. Needs the extra `mlflow`.

    A server's credentials come from the environment, as MLflow reads them.
    """

    name: Literal["mlflow"] = bookkeeping("mlflow", resume=True)
    builds: ClassVar = "titanrun.components.metrics.mlflow_tracker:MlflowTracker"
    extra: ClassVar = "mlflow"
    tracking_uri: TrackingUri | None = bookkeeping(
        None, resume=True, examples=["https://mlflow.example.com"]
    )
    """Tracking server or database. If null, the database mlflow.db in `folder`."""
    experiment: Text = bookkeeping("titanrun", resume=True)
    """Experiment of the run, created if it does not exist."""
    folder: RunPath = bookkeeping("mlflow", resume=True)
    """Folder inside the run directory for the database, its artifacts, and the id of the run."""


class TrackioConfig(TrackerConfig):
    """A run of Trackio, on this machine or in a Space. Needs the extra `trackio`.

    The library chooses the location of its projects on this machine.
    """

    name: Literal["trackio"] = bookkeeping("trackio", resume=True)
    builds: ClassVar = "titanrun.components.metrics.trackio_tracker:TrackioTracker"
    extra: ClassVar = "trackio"
    project: Text = bookkeeping("titanrun", resume=True)
    """Project of the run."""
    group: Text | None = bookkeeping(None, resume=True, examples=["ablations"])
    """Group of the run. Set to null to disable."""
    space_id: Text | None = bookkeeping(None, resume=True, examples=["my-team/runs"])
    """Space of the Hugging Face Hub that receives the metrics. If null, this machine, or the target
    in TRACKIO_SPACE_ID and TRACKIO_SERVER_URL."""
    folder: RunPath = bookkeeping("trackio", resume=True)
    """Folder inside the run directory for the id of the run."""


class ImageSamplesConfig(Config):
    """Sampling of images while an image model is trained, from the same noise every time."""

    steps: PositiveInt = bookkeeping(20, resume=True)
    """Denoising steps per image."""
    guidance: NonNegativeFloat | None = bookkeeping(None, resume=True, examples=[4.0])
    """Scale of classifier-free guidance: factor of the difference between the velocities with and
    without a caption. If null, only the velocity with a caption is used, and a model with an
    embedding of the scale gets the value used in training."""
    seed: NonNegativeInt = bookkeeping(0, resume=True)
    """Seed of the noise of the first image. It is incremented for each further one."""


class SamplesConfig(Config):
    """Samples that the model generates from prompts during training.

    For text models the most likely tokens after each prompt, in the log and in samples.jsonl. For
    image models one image each, as PNG files in samples/.
    """

    prompts: tuple[Text, ...] = bookkeeping((), resume=True, examples=[["Once upon a time"]])
    """Prompts of texts, or captions of images. If empty, nothing is generated."""
    freq: PositiveInt = bookkeeping(100, unit="steps", resume=True)
    """Steps between the samples."""
    max_new_tokens: PositiveInt = bookkeeping(32, unit="tokens", resume=True)
    """Maximum number of tokens of a text."""
    chat: bool = bookkeeping(False, resume=True)
    """Whether a prompt is a user message in the tokenizer's chat template."""
    pictures: ImageSamplesConfig = section(ImageSamplesConfig)


class MetricsConfig(Config):
    """What is logged, how often, and where."""

    log_freq: PositiveInt = bookkeeping(10, unit="steps", resume=True)
    """Steps between logged lines. The first step is always logged."""
    disable_color_printing: bool = bookkeeping(False, resume=True)
    """Whether to disable colors on the console. NO_COLOR does the same for one shell."""
    save_for_all_ranks: bool = bookkeeping(False, resume=True)
    """Whether every rank writes its metrics, into `ranks/rank-<rank>/`. Otherwise only the main
    rank does, with the loss over all ranks."""
    tokens_per_expert: bool = bookkeeping(False, resume=True, read_when=HAS_EXPERTS)
    """Whether to log the tokens of each expert of each layer, as means per step under
    `moe/tokens_per_expert/layer_N/expert_N`."""
    trackers: tuple[TrackerConfig, ...] = component(())
    """Further receivers of the metrics. metrics.jsonl is always written."""
    samples: SamplesConfig = section(SamplesConfig)

    @model_validator(mode="after")
    def check_no_duplicate_trackers(self) -> Self:
        """Check that no two trackers write into the same folder, and so into the same files."""
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
                raise conflict_error(
                    message, "trackers", hint="remove one, or set different folders"
                )
        return self
