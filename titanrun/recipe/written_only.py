"""Keys that exist only in recipe files and are removed on reading: no config has them."""

FILE_ONLY_KEYS = {
    "extends": "Recipes that this one is merged over: paths relative to this file, or "
    "`shipped:parts/fp32.yaml`; later ones win.",
    "x-*": "Place for YAML anchors; ignored.",
}
