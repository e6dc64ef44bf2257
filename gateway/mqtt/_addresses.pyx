"""Compiled leaf: the IP addresses of clients, in as few bytes as they take."""

from libc.string cimport memcpy

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    struct sockaddr_storage:
        unsigned short ss_family
    int getpeername(int fd, sockaddr *address, socklen_t *size)
    enum:
        AF_INET
        AF_INET6

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        pass
    struct in6_addr:
        pass
    struct sockaddr_in:
        unsigned short sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_port
        unsigned int sin6_scope_id
        in6_addr sin6_addr

cdef extern from "<arpa/inet.h>" nogil:
    unsigned short ntohs(unsigned short number)
    int inet_pton(int family, const char *text, void *address)
    const char *inet_ntop(int family, const void *address, char *text, socklen_t size)
    enum:
        INET6_ADDRSTRLEN


cdef int find_peer(int fd, ClientAddress *address) noexcept nogil:
    """The address of a socket's other end, while there is one; else without a family."""
    cdef sockaddr_storage found
    cdef const sockaddr_in *v4 = <const sockaddr_in *>&found
    cdef const sockaddr_in6 *v6 = <const sockaddr_in6 *>&found
    cdef socklen_t size = sizeof(found)
    address.family = 0
    if getpeername(fd, <sockaddr *>&found, &size) != 0:
        return 0
    if found.ss_family == AF_INET:
        address.port = ntohs(v4.sin_port)
        memcpy(address.host, &v4.sin_addr, 4)
    elif found.ss_family == AF_INET6:
        address.port = ntohs(v6.sin6_port)
        address.scope = v6.sin6_scope_id
        memcpy(address.host, &v6.sin6_addr, 16)
    else:
        return 0
    address.family = <unsigned char>found.ss_family
    return 0


cdef int read_address(object said, ClientAddress *address) except -1:
    """What accept() said; without a family if that is no IP address."""
    cdef bytes host
    address.family = 0
    if not isinstance(said, tuple):
        return 0
    host = said[0].partition("%")[0].encode()
    if inet_pton(AF_INET, host, address.host) == 1:
        address.family = AF_INET
    elif inet_pton(AF_INET6, host, address.host) == 1:
        address.family = AF_INET6
    else:
        return 0
    address.port = said[1]
    address.scope = said[3] if len(said) > 3 else 0
    return 0


cdef object address_as_tuple(const ClientAddress *address):
    """As socket.getpeername() says it, without a flow label; None: it is no IP address."""
    cdef char[INET6_ADDRSTRLEN] text
    if not address.family or inet_ntop(address.family, address.host, text, sizeof(text)) == NULL:
        return None
    host = text.decode("ascii")
    return (host, address.port) if address.family == AF_INET else (host, address.port, 0, address.scope)
