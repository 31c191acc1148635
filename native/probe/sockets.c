#define _GNU_SOURCE
#include "probe/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "xprof_py/shard_format.h"

/* Of the server's socket: about 300 packets. More would only make what it holds older. */
enum { RECEIVE_BUFFER_BYTES = 128 << 10 };

bool xpr_socket_is_ours(const struct xpr_socket *s) {
    struct stat state;
    return s->fd >= 0 && fstat(s->fd, &state) == 0 && state.st_dev == s->device && state.st_ino == s->inode;
}

void xpr_socket_close(struct xpr_socket *s) {
    if (xpr_socket_is_ours(s)) close(s->fd);
    s->fd = -1;
}

int xpr_resolve(const char *host, uint16_t port, struct addrinfo **addresses) {
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo wanted = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    return getaddrinfo(host, service, &wanted, addresses);
}

/* A new socket above the standard streams, which a program without them would otherwise print into. 0 or errno. */
static int make(struct xpr_socket *s, int family) {
    struct stat state;
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && fd <= 2) {
        int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        int error = errno;
        close(fd);
        errno = error;
        fd = higher;
    }
    s->fd = -1;
    if (fd < 0) return errno;
    if (fstat(fd, &state) != 0) {
        int error = errno;
        close(fd);
        return error;
    }
    *s = (struct xpr_socket){fd, state.st_dev, state.st_ino};
    return 0;
}

static void want(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

bool xpr_address_is_local(const struct addrinfo *address) {
    struct sockaddr_storage at;
    struct xpr_socket s;
    memcpy(&at, address->ai_addr, address->ai_addrlen);
    if (at.ss_family == AF_INET) ((struct sockaddr_in *)&at)->sin_port = 0;
    if (at.ss_family == AF_INET6) ((struct sockaddr_in6 *)&at)->sin6_port = 0;
    if (make(&s, address->ai_family)) return false;
    bool local = bind(s.fd, (struct sockaddr *)&at, address->ai_addrlen) == 0;
    xpr_socket_close(&s);
    return local;
}

int xpr_socket_serve(struct xpr_socket *s, uint16_t port) {
    struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    int error = make(s, AF_INET6);
    if (!error) {
        want(s->fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
        want(s->fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
        if (bind(s->fd, (struct sockaddr *)&any6, sizeof any6) != 0) error = errno;
    }
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {
        /* A host without IPv6. */
        xpr_socket_close(s);
        error = make(s, AF_INET);
        if (!error) {
            want(s->fd, IPPROTO_IP, IP_PKTINFO, 1);
            if (bind(s->fd, (struct sockaddr *)&any4, sizeof any4) != 0) error = errno;
        }
    }
    if (error) {
        xpr_socket_close(s);
        return error;
    }
    want(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    want(s->fd, SOL_SOCKET, SO_RCVBUF, RECEIVE_BUFFER_BYTES);
    return 0;
}

int xpr_socket_connect(struct xpr_socket *s, const struct addrinfo *addresses) {
    int error = EADDRNOTAVAIL;
    for (const struct addrinfo *a = addresses; a; a = a->ai_next) {
        error = make(s, a->ai_family);
        if (error) continue;
        if (connect(s->fd, a->ai_addr, a->ai_addrlen) == 0) {
            want(s->fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
            return 0;
        }
        error = errno;
        xpr_socket_close(s);
    }
    return error;
}

ssize_t xpr_socket_read(int fd, void *content, size_t room, struct xpr_way *way) {
    _Alignas(struct cmsghdr) char control[256];
    struct iovec part = {content, room};
    struct msghdr message = {
        .msg_name = &way->from, .msg_namelen = sizeof way->from, .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = sizeof control,
    };
    way->arrival_ns = 0;
    way->has_to = false;
    ssize_t bytes = recvmsg(fd, &message, MSG_DONTWAIT | MSG_TRUNC);
    if (bytes < 0) return -errno;
    way->from_bytes = message.msg_namelen;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec at;
            memcpy(&at, CMSG_DATA(c), sizeof at);
            way->arrival_ns = (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
        } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo at;
            memcpy(&at, CMSG_DATA(c), sizeof at);
            way->to6 = at.ipi6_addr;
            way->has_to = true;
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo at;
            memcpy(&at, CMSG_DATA(c), sizeof at);
            memset(&way->to6, 0, sizeof way->to6);
            memcpy(way->to6.s6_addr + 12, &at.ipi_addr, 4);
            way->has_to = true;
        }
    }
    return bytes;
}

uint32_t xpr_wait_ns(const struct xpr_way *way) {
    struct timespec now;
    /* Not through libc: a clock that someone put in front of the kernel's cannot be compared with the kernel's stamp. */
    if (!way->arrival_ns || syscall(SYS_clock_gettime, CLOCK_REALTIME, &now) != 0) return XPR_WAIT_UNKNOWN;
    int64_t wait_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - way->arrival_ns;
    return wait_ns < 0 || wait_ns >= XPR_WAIT_UNKNOWN ? XPR_WAIT_UNKNOWN : (uint32_t)wait_ns;
}

bool xpr_socket_reply(int fd, const void *content, size_t bytes, const struct xpr_way *way) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(struct in6_pktinfo))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)content, bytes};
    struct msghdr message = {
        .msg_name = (void *)(uintptr_t)&way->from, .msg_namelen = way->from_bytes, .msg_iov = &part, .msg_iovlen = 1,
    };
    if (way->has_to) {
        message.msg_control = control.room;
        if (way->from.ss_family == AF_INET6) {
            struct in6_pktinfo from = {.ipi6_addr = way->to6};
            message.msg_controllen = CMSG_SPACE(sizeof from);
            control.head = (struct cmsghdr){CMSG_LEN(sizeof from), IPPROTO_IPV6, IPV6_PKTINFO};
            memcpy(CMSG_DATA(&control.head), &from, sizeof from);
        } else {
            struct in_pktinfo from = {0};
            memcpy(&from.ipi_spec_dst, way->to6.s6_addr + 12, 4);
            message.msg_controllen = CMSG_SPACE(sizeof from);
            control.head = (struct cmsghdr){CMSG_LEN(sizeof from), IPPROTO_IP, IP_PKTINFO};
            memcpy(CMSG_DATA(&control.head), &from, sizeof from);
        }
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

uint64_t xpr_socket_drops(int fd) {
    uint32_t info[SK_MEMINFO_VARS] = {0};
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &bytes) != 0 || bytes < (SK_MEMINFO_DROPS + 1) * sizeof *info)
        return UINT64_MAX;
    return info[SK_MEMINFO_DROPS];
}
