"""The form of what says where a table lies. Others are told it, so it holds no secret."""

from typing import Final

FOLDER_OR_STORAGE: Final = "a folder, or a URL of storage like s3://BUCKET/PATH without user, password and query"
OF_STORAGE: Final = (
    r"(?![A-Za-z][A-Za-z0-9+.-]*:/).*|file://.*|(?:[a-z0-9]+://|abfss?://[^/@:?#]+@)[^/@:?#]+(?:/[^?#]*)?"
)
"""In front of an @ Azure has the name of a container."""
