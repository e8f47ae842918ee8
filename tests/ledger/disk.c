/* A disk that fails when it is told to: preloaded, it stands before the system calls on files whose path holds $DISK_FILES.
 *
 * $DISK_SAYS names a file: while it holds a number, every write and synchronisation fails with that errno; "sync N" fails
 * synchronisations alone, "slow MS" delays them. $DISK_KILLS=N ends the process at the N-th call, with half of what it would have written; N=0: never.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long calls;

static int ours(int fd) {
  char link[64], path[4096];
  const char *files = getenv("DISK_FILES");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0 || files == NULL) return 0;
  path[size] = 0;
  return strstr(path, files) != NULL && strstr(path, "-shm") == NULL;
}

static int last(void) {
  const char *kills = getenv("DISK_KILLS");
  return kills != NULL && atol(kills) == ++calls;
}

static void end(void) { kill(getpid(), SIGKILL); }

static int fault(int sync) {
  char said[32] = "";
  const char *says = getenv("DISK_SAYS");
  int fd = says == NULL ? -1 : open(says, O_RDONLY);
  if (fd < 0) return 0;
  if (read(fd, said, sizeof said - 1) < 0) said[0] = 0;
  close(fd);
  if (strncmp(said, "slow ", 5) == 0) {
    if (sync) usleep(1000 * (useconds_t)atoi(said + 5));
    return 0;
  }
  if (strncmp(said, "sync ", 5) == 0) return sync ? atoi(said + 5) : 0;
  return atoi(said);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define PWRITE(name, offset)                                              \
  ssize_t name(int fd, const void *data, size_t size, offset at) {        \
    if (!ours(fd)) return NEXT(name)(fd, data, size, at);                 \
    if (last()) {                                                         \
      NEXT(name)(fd, data, size / 2, at);                                 \
      end();                                                              \
    }                                                                     \
    int error = fault(0);                                                 \
    if (error != 0) return errno = error, -1;                             \
    return NEXT(name)(fd, data, size, at);                                \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define SYNC(name)                            \
  int name(int fd) {                          \
    if (!ours(fd)) return NEXT(name)(fd);     \
    if (last()) end();                        \
    int error = fault(1);                     \
    if (error != 0) return errno = error, -1; \
    return NEXT(name)(fd);                    \
  }
SYNC(fsync)
SYNC(fdatasync)

#define CUT(name, offset)                             \
  int name(int fd, offset size) {                     \
    if (ours(fd) && last()) end();                    \
    return NEXT(name)(fd, size);                      \
  }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)
