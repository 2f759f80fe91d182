"""The version of titanrun, which the build reads here too, and the names of its packages."""

VERSION = "0.1.0"
# with all that training needs, and with what text work needs
FULL_DISTRIBUTION = "titanrun"
LIGHT_DISTRIBUTION = "titanrun-core"
