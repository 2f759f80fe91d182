"""Routes that show commands, start them, and let them wait."""

from collections.abc import Mapping
from typing import Any

from starlette.routing import Route

from titanrun.recipe.plan.devices import DEVICES
from titanrun.ui.json_routes import get_number, get_route, get_text, get_words, post_route
from titanrun.ui.ui_parts import UiParts


def build_queue_routes(parts: UiParts) -> list[Route]:
    """Return the routes that show the queue, and what a page can ask for."""
    return [
        get_route("/jobs", lambda _: parts.jobs.list_jobs()),
        get_route("/plan-devices", lambda _: {"devices": list_plan_devices()}),
    ]


def build_job_routes(parts: UiParts) -> list[Route]:
    """Return the routes that start commands and change the queue."""
    jobs, queue = parts.jobs, parts.jobs.queue

    def start(data: Mapping[str, Any]) -> Any:
        return jobs.start(
            get_text(data, "digest"),
            allows_code=data.get("allows_code") is True,
            is_queued=data.get("queue") is True,
            slots=max(1, get_number({"slots": 1, **data}, "slots")),
        )

    def cancel(data: Mapping[str, Any]) -> Any:
        queue.cancel(data["id"])
        return jobs.list_jobs()

    def reorder(data: Mapping[str, Any]) -> Any:
        queue.reorder(get_words(data, "ids"))
        return jobs.list_jobs()

    def set_slots(data: Mapping[str, Any]) -> Any:
        queue.set_slots(get_number(data, "slots"))
        return jobs.list_jobs()

    def speak(data: Mapping[str, Any]) -> Any:
        request = data.get("request")
        jobs.chats.send(data["id"], request if isinstance(request, dict) else {})
        return {}

    def end_chat(data: Mapping[str, Any]) -> Any:
        jobs.chats.close(data["id"])
        return {}

    return [
        get_route("/chat/{id}", lambda request: jobs.chats.describe(request.path_params["id"])),
        post_route("/chat/{id}", speak),
        post_route("/chat/{id}", end_chat, method="DELETE"),
        post_route("/jobs/preview", jobs.preview),
        post_route("/jobs", start),
        get_route("/jobs/{id}", lambda request: jobs.describe_job(request.path_params["id"])),
        post_route("/jobs/{id}", cancel, method="DELETE"),
        post_route("/queue/order", reorder),
        post_route("/queue/slots", set_slots),
    ]


def list_plan_devices() -> list[dict[str, str]]:
    """Return the accelerators that a plan knows."""
    return [{"name": name, "title": device.name} for name, device in DEVICES.items()]
