/* Takes syncs out of a program that it is loaded into (LD_PRELOAD): does a test that cuts the power notice?
 *
 * $CAIRN_FORGETS: kinds of files whose syncs do nothing and say that all is well, with commas between them:
 *
 *     folders    of folders: names
 *     log        of the metadata's log: syncs, and writes that are to be durable when they return
 *     shards     of data
 *     state      of the metadata's state, its copies, and everything that RocksDB syncs
 *     pool       of all other files
 *
 * io_uring goes past this; the program's syncs and durable writes do not go through it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *kind_of(int fd) {
    struct stat found;
    if (fstat(fd, &found) == 0 && S_ISDIR(found.st_mode)) {
        return "folders";
    }
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0) {
        return "pool";
    }
    path[len] = 0;
    if (strstr(path, "/shards/") != NULL || strstr(path, "/free/") != NULL || strstr(path, "/rebuild/") != NULL) {
        return "shards";
    }
    if (strstr(path, "/volumes/") != NULL) {
        return strstr(path, "/state") == NULL && strstr(path, "/log.") != NULL ? "log" : "state";
    }
    return "pool";
}

static int forgets(int fd) {
    const char *rest = getenv("CAIRN_FORGETS");
    if (rest == NULL) {
        return 0;
    }
    const char *kind = kind_of(fd);
    size_t kind_len = strlen(kind);
    while (*rest != 0) {
        size_t len = strcspn(rest, ",");
        if (len == kind_len && strncmp(rest, kind, len) == 0) {
            return 1;
        }
        rest += len;
        rest += *rest == ',';
    }
    return 0;
}

int fsync(int fd) {
    static int (*real)(int);
    if (real == NULL) {
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    }
    return forgets(fd) ? 0 : real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (real == NULL) {
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    }
    return forgets(fd) ? 0 : real(fd);
}

int sync_file_range(int fd, off_t offset, off_t len, unsigned flags) {
    static int (*real)(int, off_t, off_t, unsigned);
    if (real == NULL) {
        real = (int (*)(int, off_t, off_t, unsigned))dlsym(RTLD_NEXT, "sync_file_range");
    }
    return forgets(fd) ? 0 : real(fd, offset, len, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
    if (real == NULL) {
        real = (ssize_t(*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, "pwritev2");
    }
    return real(fd, parts, count, offset, forgets(fd) ? flags & ~(RWF_DSYNC | RWF_SYNC) : flags);
}
