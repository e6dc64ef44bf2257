cdef struct ClientAddress:      # an IPv4 or IPv6 address in as few bytes as that takes
    unsigned char[16] host
    unsigned int scope
    unsigned short port
    unsigned char family        # 0: it is none of these

cdef int find_peer(int fd, ClientAddress *address) noexcept nogil
cdef int read_address(object said, ClientAddress *address) except -1
cdef object address_as_tuple(const ClientAddress *address)
