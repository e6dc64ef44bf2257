# The part of _mqtt.pyx that takes what a connection has out of it, and puts it in again in another process.

def link_rest(Link link not None):
    """What came in and is not dealt with so far."""
    return PyBytes_FromStringAndSize(link.partial, link.partial_size)


def link_aliases(Link link not None):
    """topic -> the alias that stands for it towards the client."""
    return dict(link.aliases_out) if link.aliases_out is not None else {}


def put_into_link(Link link not None, bytes rest not None, dict aliases not None):
    """Have a new link go on where another one was, which had these."""
    if aliases:
        link.aliases_out = aliases
    link.handed_over = True     # the transport may hold bytes that come first
    if rest:
        keep(link, PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))
