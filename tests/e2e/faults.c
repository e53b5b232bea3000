/* Makes the disks of one program fail, hang or become slow: loaded before the C library (LD_PRELOAD), so that
 * the program under test is the one that is shipped.
 *
 * $CAIRN_FAULTS names a file. Each of its lines says what happens to files below a folder, as long as it is there:
 *
 *     fail FOLDER/        reads, writes, syncs, and everything with names: EIO
 *     hang FOLDER/        the same do not return, until the line is gone
 *     slow FOLDER/ MS     the same take so many milliseconds longer
 *     ro FOLDER/          what changes something: EROFS, as on a file system that is read-only
 *
 * io_uring goes past this: the program has to use threads (disk_io = "threads").
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define RULES_LEN_MAX 4096
#define POLL_MS 20

enum effect { NONE, FAIL, HANG, SLOW, READ_ONLY };

static void pause_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* By system calls of its own: those of the C library come back here. */
static enum effect effect_on(const char *path, long *ms) {
    const char *rules_path = getenv("CAIRN_FAULTS");
    if (rules_path == NULL || path == NULL || path[0] != '/') {
        return NONE;
    }
    char rules[RULES_LEN_MAX];
    long file = syscall(SYS_openat, AT_FDCWD, rules_path, O_RDONLY | O_CLOEXEC, 0);
    if (file < 0) {
        return NONE;
    }
    long len = syscall(SYS_read, file, rules, sizeof rules - 1);
    syscall(SYS_close, file);
    if (len <= 0) {
        return NONE;
    }
    rules[len] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(rules, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char what[8], folder[PATH_MAX];
        long by = 0;
        if (sscanf(line, "%7s %4095s %ld", what, folder, &by) < 2) {
            continue;
        }
        size_t folder_len = strlen(folder);
        int is_below = strncmp(path, folder, folder_len) == 0;
        /* The folder itself, which is named without the slash. */
        int is_it = strlen(path) + 1 == folder_len && strncmp(path, folder, folder_len - 1) == 0;
        if (!is_below && !is_it) {
            continue;
        }
        *ms = by;
        if (strcmp(what, "fail") == 0) {
            return FAIL;
        }
        if (strcmp(what, "hang") == 0) {
            return HANG;
        }
        if (strcmp(what, "slow") == 0) {
            return SLOW;
        }
        if (strcmp(what, "ro") == 0) {
            return READ_ONLY;
        }
    }
    return NONE;
}

/* Whether the operation, which changes something or does not, is to fail; returns when it may go on. */
static int meets(const char *path, int changes) {
    int before = errno;
    long ms = 0;
    enum effect effect;
    while ((effect = effect_on(path, &ms)) == HANG) {
        pause_ms(POLL_MS);
    }
    if (effect == SLOW) {
        pause_ms(ms);
    }
    if (effect == FAIL) {
        errno = EIO;
        return 1;
    }
    if (effect == READ_ONLY && changes) {
        errno = EROFS;
        return 1;
    }
    errno = before;
    return 0;
}

static int meets_file(int file, int changes) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    long len = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (len <= 0) {
        return 0;
    }
    path[len] = 0;
    return meets(path, changes);
}

static int meets_at(int folder, const char *name, int changes) {
    if (name == NULL || name[0] == '/' || folder == AT_FDCWD) {
        return name == NULL ? 0 : meets(name, changes);
    }
    return meets_file(folder, changes);
}

static int opens_to_write(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT) != 0;
}

#define REAL(type, name, ...)                                   \
    static type (*real)(__VA_ARGS__);                           \
    if (real == NULL) {                                         \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);    \
    }

#define ON_FILE(type, name, changes, parameters, arguments)     \
    type name parameters {                                      \
        static type(*real) parameters;                          \
        if (real == NULL) {                                     \
            real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        }                                                       \
        return meets_file(file, changes) ? -1 : real arguments; \
    }

ON_FILE(ssize_t, read, 0, (int file, void *into, size_t len), (file, into, len))
ON_FILE(ssize_t, readv, 0, (int file, const struct iovec *into, int count), (file, into, count))
ON_FILE(ssize_t, pread, 0, (int file, void *into, size_t len, off_t at), (file, into, len, at))
ON_FILE(ssize_t, pread64, 0, (int file, void *into, size_t len, off64_t at), (file, into, len, at))
ON_FILE(ssize_t, write, 1, (int file, const void *from, size_t len), (file, from, len))
ON_FILE(ssize_t, writev, 1, (int file, const struct iovec *from, int count), (file, from, count))
ON_FILE(ssize_t, pwrite, 1, (int file, const void *from, size_t len, off_t at), (file, from, len, at))
ON_FILE(ssize_t, pwrite64, 1, (int file, const void *from, size_t len, off64_t at), (file, from, len, at))
ON_FILE(ssize_t, pwritev2, 1, (int file, const struct iovec *from, int count, off_t at, int flags),
        (file, from, count, at, flags))
ON_FILE(int, fsync, 0, (int file), (file))
ON_FILE(int, fdatasync, 0, (int file), (file))
ON_FILE(int, sync_file_range, 0, (int file, off64_t at, off64_t len, unsigned flags), (file, at, len, flags))
ON_FILE(int, ftruncate, 1, (int file, off_t len), (file, len))
ON_FILE(int, ftruncate64, 1, (int file, off64_t len), (file, len))
ON_FILE(int, fallocate, 1, (int file, int mode, off_t at, off_t len), (file, mode, at, len))

static mode_t mode_of(int flags, va_list more) {
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

#define OPENS(name)                                             \
    int name(const char *path, int flags, ...) {                \
        REAL(int, #name, const char *, int, mode_t)             \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode_t mode = mode_of(flags, more);                     \
        va_end(more);                                           \
        return meets(path, opens_to_write(flags)) ? -1 : real(path, flags, mode); \
    }

OPENS(open)
OPENS(open64)

int openat64(int folder, const char *path, int flags, ...) {
    REAL(int, "openat64", int, const char *, int, mode_t)
    va_list more;
    va_start(more, flags);
    mode_t mode = mode_of(flags, more);
    va_end(more);
    return meets_at(folder, path, opens_to_write(flags)) ? -1 : real(folder, path, flags, mode);
}

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *)
    return meets(to, 1) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *)
    return meets(path, 1) ? -1 : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t)
    return meets(path, 1) ? -1 : real(path, mode);
}
