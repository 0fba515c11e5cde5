/* LD_PRELOAD: a disk that is full or slow, a wrong clock, a network that is cut, for one process at a time.
 *
 * Files say what befalls a process while they are there: $UNKIND/PID.full, .slow (seconds, as in "0.5"), .skew (seconds), .cut (a port). Only files below $UNKIND_DATA have the bad disk. Asked for at most every 10 ms.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static struct { long long asked_ns; double full, port, slow_s, skew_s; } state;

/* What the file says; 1 where it says nothing, 0 where it is not there. */
static double order(const char *folder, const char *kind) {
    char path[PATH_MAX], text[64];
    snprintf(path, sizeof path, "%s/%d.%s", folder, getpid(), kind);
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) return 0;
    long length = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    text[length < 0 ? 0 : length] = 0;
    return length > 0 ? strtod(text, NULL) : 1;
}

static void refresh(void) {
    const char *folder = getenv("UNKIND");
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    long long now_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    if (!folder || now_ns - state.asked_ns < 10000000) return;
    int kept = errno;
    state.asked_ns = now_ns;
    state.full = order(folder, "full");
    state.slow_s = order(folder, "slow");
    state.skew_s = order(folder, "skew");
    state.port = order(folder, "cut");
    errno = kept;
}

static int is_below(const char *path) {
    const char *data = getenv("UNKIND_DATA");
    return data && !strncmp(path, data, strlen(data));
}

static int is_data(int file) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    long length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return is_below(path);
}

static int is_cut(int file) {
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    return state.port && !getpeername(file, (struct sockaddr *)&peer, &size) && peer.sin_family == AF_INET &&
           ntohs(peer.sin_port) == state.port;
}

static void linger(void) {
    struct timespec pause = {(time_t)state.slow_s, (long)((state.slow_s - (long)state.slow_s) * 1e9)};
    nanosleep(&pause, NULL);
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name); refresh()
#define NO_ROOM(file) if (state.full && is_data(file)) { errno = ENOSPC; return -1; }
#define IF_CUT(file) if (is_cut(file)) { errno = ECONNRESET; return -1; }

ssize_t write(int file, const void *data, size_t size) { REAL(ssize_t, write, int, const void *, size_t); NO_ROOM(file) return real(file, data, size); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { REAL(ssize_t, pwrite, int, const void *, size_t, off_t); NO_ROOM(file) return real(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t); NO_ROOM(file) return real(file, data, size, at); }
ssize_t writev(int file, const struct iovec *parts, int count) { REAL(ssize_t, writev, int, const struct iovec *, int); NO_ROOM(file) return real(file, parts, count); }
int fsync(int file) { REAL(int, fsync, int); NO_ROOM(file) if (state.slow_s && is_data(file)) linger(); return real(file); }
int fdatasync(int file) { REAL(int, fdatasync, int); NO_ROOM(file) if (state.slow_s && is_data(file)) linger(); return real(file); }
int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    if (state.full && is_below(to)) { errno = ENOSPC; return -1; }
    if (state.slow_s && is_below(to)) linger();
    return real(from, to);
}

int connect(int file, const struct sockaddr *to, socklen_t size) {
    REAL(int, connect, int, const struct sockaddr *, socklen_t);
    if (state.port && to->sa_family == AF_INET && ntohs(((const struct sockaddr_in *)to)->sin_port) == state.port) {
        errno = ENETUNREACH;
        return -1;
    }
    return real(file, to, size);
}
ssize_t send(int file, const void *data, size_t size, int flags) { REAL(ssize_t, send, int, const void *, size_t, int); IF_CUT(file) return real(file, data, size, flags); }
ssize_t recv(int file, void *data, size_t size, int flags) { REAL(ssize_t, recv, int, void *, size_t, int); IF_CUT(file) return real(file, data, size, flags); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int result = real(clock, now);
    if (!result && clock == CLOCK_REALTIME) now->tv_sec += (long)state.skew_s;
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(int, gettimeofday, struct timeval *, void *);
    int result = real(now, zone);
    if (!result) now->tv_sec += (long)state.skew_s;
    return result;
}
