"""The version of topicsd. pyproject.toml takes it from here: reading it back from the metadata of the installed
package would bring the parser of e-mail into every process."""

from typing import Final

VERSION: Final = "0.1.0"
