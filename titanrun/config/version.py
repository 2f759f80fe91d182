"""The version of titanrun, which the build reads here too."""

VERSION = "0.1.0"
