/* UDP sockets of the prober. Nothing here blocks, but for xpr_resolve. Errors are errno values.
 *
 * A program may close every descriptor that it finds and open others in their place: each use of a socket first looks
 * whether the descriptor is still the one that was made (0.2 us), and nothing is sent to or read from another. */
#ifndef XPROF_PY_PROBE_SOCKETS_H
#define XPROF_PY_PROBE_SOCKETS_H

#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

struct xpr_socket {
    int fd; /* -1: none */
    dev_t device;
    ino_t inode;
};

bool xpr_socket_is_ours(const struct xpr_socket *s);
/* Closes it if it is ours. */
void xpr_socket_close(struct xpr_socket *s);

/* The addresses of host (a name, or IPv4 or IPv6 as text) and port; freeaddrinfo is the caller's. Asks the system's name
 * service and may take as long as that does. 0, or a getaddrinfo error. */
int xpr_resolve(const char *host, uint16_t port, struct addrinfo **addresses);

/* Whether this host has the address. */
bool xpr_address_is_local(const struct addrinfo *address);

/* A socket that answers at the port on all addresses, IPv6 and IPv4. 0 or errno. */
int xpr_socket_serve(struct xpr_socket *s, uint16_t port);

/* A socket that talks to the first of the addresses that there is a route to. The kernel gives it packets from there
 * alone. 0 or errno. */
int xpr_socket_connect(struct xpr_socket *s, const struct addrinfo *addresses);

/* Where a packet came from and at which of our addresses: a reply must come from there. */
struct xpr_way {
    struct sockaddr_storage from;
    socklen_t from_bytes;
    struct in6_addr to6; /* v4-mapped for IPv4 */
    bool has_to;
    int64_t arrival_ns; /* when the kernel had the packet, on its CLOCK_REALTIME; 0: not known */
};

/* Reads one packet, at most `room` bytes of it; the length is the packet's own. -errno if there is none. */
ssize_t xpr_socket_read(int fd, void *content, size_t room, struct xpr_way *way);

/* How long a packet lay in the kernel until now, in ns; XPR_WAIT_UNKNOWN where it does not say. Asks the kernel itself for
 * the time, as it was the kernel that stamped the arrival. */
uint32_t xpr_wait_ns(const struct xpr_way *way);

/* Sends a reply back along the way. False: not sent. */
bool xpr_socket_reply(int fd, const void *content, size_t bytes, const struct xpr_way *way);

/* Packets that the kernel dropped as the socket's buffer was full; UINT64_MAX: it does not say. */
uint64_t xpr_socket_drops(int fd);

#endif
