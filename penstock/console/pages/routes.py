"""All routes of the pages."""

from penstock.console.pages import (
    clients,
    dead_letters,
    groups,
    log,
    message,
    overview,
    publish,
    readers,
    receivers,
    sign_in,
    single_sign_on,
    static_files,
    topic,
    topic_live,
    topics,
    waiting,
)
from penstock.console.pages.rendering import router as router

PAGES = (
    clients,
    dead_letters,
    groups,
    log,
    message,
    overview,
    publish,
    readers,
    receivers,
    sign_in,
    single_sign_on,
    topic,
    topic_live,
    topics,
    waiting,
)

router.add_route("/static/{name:path}", static_files.static_file, methods=["GET"], include_in_schema=False)
