"""Keys that only files have: they are gone once a recipe is read, so that no config knows them."""

WRITTEN_ONLY = {
    "extends": "Recipes that this one is laid over, relative to this file, or as `shipped:parts/fp32.yaml`; later ones win.",
    "x-*": "A place for anchors; not read.",
}
