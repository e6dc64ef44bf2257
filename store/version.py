"""The version that $SYS, the metrics and `penstock --version` tell; pyproject.toml has it from here, as to ask for that
of what is installed takes a hundredth of a second in each start."""

VERSION = "0.1.0"
