// Preloaded into a MariaDB server: while the file is there, what it commits does not get to the disk.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for_disk(int file) {
  char link[40], name[4096];
  const char *stuck = getenv("STUCK_DISK");
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, name, sizeof name - 1);
  name[length > 0 ? length : 0] = 0;
  while (stuck && strstr(name, "ib_logfile") && access(stuck, F_OK) == 0) usleep(1000);
}

int fsync(int file) {
  wait_for_disk(file);
  return syscall(SYS_fsync, file);
}

int fdatasync(int file) {
  wait_for_disk(file);
  return syscall(SYS_fdatasync, file);
}
