"""A project's models, which SDK 3.x asks for, in the shape of its types ``Model`` and ``ModelWeights``. Only what is known is sent."""

from __future__ import annotations

from quintet.dialects.base import ServedModel


def of_project(served: ServedModel, project: str) -> dict[str, object]:
    """An entry. SDK, name: "in the form `<project_slug>/<model_name>`"; here without, so that it is a name that requests can use."""
    weights: dict[str, object] = {"type": "WEIGHTS_TYPE_DEFAULT"}
    if served.context is not None:
        weights["contextLength"] = str(served.context)
    return {
        "id": served.name,
        "name": served.name,
        "organizationId": "quintet",
        "projectId": project,
        "visibility": "VISIBILITY_INTERNAL",  # SDK: "shares it with the organization"; every project has all models here
        "weights": weights,
    }
