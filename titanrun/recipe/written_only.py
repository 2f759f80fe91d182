"""Keys that only files have: they are gone once a recipe is read, so that no config knows them."""

WRITTEN_ONLY = {
    "extends": "Recipes that this one is laid over, relative to this file, or `shipped:parts/fp32.yaml` for a file that ships; later ones win.",
    "x-*": "A place for anchors; not read.",
}
