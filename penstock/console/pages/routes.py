"""All routes of the pages."""

from penstock.console.pages import message, publish, sign_in, static_files, topic, topics
from penstock.console.pages.rendering import router as router

PAGES = (message, publish, sign_in, topic, topics)

router.add_route("/static/{name:path}", static_files.static_file, methods=["GET"], include_in_schema=False)
