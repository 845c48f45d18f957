#define _GNU_SOURCE
#include "core/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Measured on Debian 12 (OpenBLAS 0.3.21, MPICH 4.0.2, UCX 1.13.1) with strace and bisection, 2026-11-29. */
static const int64_t MIB = 1 << 20;
static const int64_t BLAS_BUFFER = 128 << 20; /* per thread; without it OpenBLAS loops for ever */
static const int64_t START_BYTES = 64 << 20, LAUNCHED_BYTES = 64 << 20; /* for the other libraries and Lua */
static const int64_t RANK_SHM_BYTES = 6 << 20;                          /* UCX's queues in /dev/shm, per rank */
static const int64_t RANK_FILE_BYTES = 8 << 20;                         /* the largest file there */
enum { FILES_ALONE = 16, FILES_LAUNCHED = 48, FILES_PER_RANK = 3 };     /* plus one for each other rank */
enum { START_THREADS = 5 }; /* UCX, the watchdog, communication, a writer, a reader of data */
enum { MOST_LISTED = 512 };

static int blas_threads = 1; /* number of threads that have their buffers */

/* ---- before the libraries ---- */

static const char *find(char **environment, const char *name)
{
    size_t n = strlen(name);
    for (; *environment; environment++)
        if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
            return *environment + n + 1;
    return NULL;
}

/* Whether this rank prints the message: if several ranks of a machine fail on the same limit, only one should. They
 * have the same parent, so the first one to bind a name derived from it prints, and keeps the name briefly. */
static bool speaks_for_all(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int bytes = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "mxlua-limit-%d", (int)getppid());
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
    return fd < 0 || bind(fd, (struct sockaddr *)&name, size) == 0 || errno != EADDRINUSE;
}

static _Noreturn void refuse(bool launched, const char *message)
{
    char line[1024];
    int bytes = snprintf(line, sizeof line, "mxlua: %s\n", message);
    if ((!launched || speaks_for_all()) && write(STDERR_FILENO, line, (size_t)bytes) == bytes && launched)
        nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
    _exit(EXIT_FAILURE);
}

/* Opens /dev/null for closed standard streams. Otherwise a library's first file would get such a number, and output
 * would be written into it. Each is opened for the opposite direction, so that using it still fails like a closed one.
 */
static void fill_closed(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        while (fcntl(fd, F_GETFD) < 0)
            if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
                return;
}

/* The sizes of this process in bytes: address space and data. */
static void read_sizes(int64_t *addresses, int64_t *data)
{
    char text[128] = "";
    long long total = 0, data_pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t bytes = read(fd, text, sizeof text - 1);
        text[bytes > 0 ? bytes : 0] = '\0';
        close(fd);
    }
    if (sscanf(text, "%lld %*s %*s %*s %*s %lld", &total, &data_pages) != 2)
        total = data_pages = 0;
    *addresses = total * sysconf(_SC_PAGESIZE);
    *data = data_pages * sysconf(_SC_PAGESIZE);
}

/* Whether a soft limit is below `bytes`; *value is the limit. */
static bool is_below(int limit, int64_t bytes, int64_t *value)
{
    struct rlimit r;
    if (getrlimit(limit, &r) != 0 || r.rlim_cur == RLIM_INFINITY || r.rlim_cur >= (rlim_t)bytes)
        return false;
    *value = (int64_t)r.rlim_cur;
    return true;
}

/* Whether so much more memory can be allocated; if not, writes a message for `what` that names the limit. */
static bool memory_is_there(int64_t bytes, const char *what, char *message, size_t room)
{
    void *trial = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (trial != MAP_FAILED) {
        munmap(trial, (size_t)bytes);
        return true;
    }
    int64_t addresses, data, value;
    read_sizes(&addresses, &data);
    int64_t wanted = (addresses + bytes) / MIB + 64;
    if (is_below(RLIMIT_AS, addresses + bytes, &value))
        snprintf(message, room,
                 "the limit on addresses, %lld KiB, is too low %s: raise it with 'ulimit -v %lld' or 'ulimit -v "
                 "unlimited'",
                 (long long)value / 1024, what, (long long)wanted * 1024);
    else if (is_below(RLIMIT_DATA, data + bytes, &value))
        snprintf(message, room,
                 "the limit on data, %lld KiB, is too low %s: raise it with 'ulimit -d %lld' or 'ulimit -d unlimited'",
                 (long long)value / 1024, what, (long long)((data + bytes) / MIB + 64) * 1024);
    else
        snprintf(message, room,
                 "the system grants no %lld MiB of memory %s: end other programs, or allow more with 'sysctl "
                 "vm.overcommit_memory=0'",
                 (long long)(bytes / MIB), what);
    return false;
}

/* The number of threads that OpenBLAS prepares when it is loaded. */
static int threads_of(const char *asked)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    int wanted = asked ? atoi(asked) : 0;
    return wanted > 0 && wanted < n ? wanted : n;
}

/* Sets environment variables of libraries. UCX: no debug mode, in which it collects messages after a SIGHUP, and no
 * addresses of functions in its errors. libgomp: waiting threads spin only for 50 microseconds instead of milliseconds.
 * If other programs use the cores too, longer spinning takes their time: two threads next to another program were
 * slower than one. */
static void set_environment(char **argv, char **environment)
{
    static char names[][32] = {"UCX_DEBUG_SIGNO", "UCX_HANDLE_ERRORS", "GOMP_SPINCOUNT"};
    static char words[][64] = {"UCX_DEBUG_SIGNO=0", "UCX_HANDLE_ERRORS=none", "GOMP_SPINCOUNT=1000"};
    int n = 0, added = 0;
    while (environment[n])
        n++;
    size_t bytes = ((size_t)n + 4) * sizeof(char *);
    char **larger = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (larger == MAP_FAILED)
        return;
    memcpy(larger, environment, (size_t)n * sizeof(char *));
    bool has_policy = find(environment, "OMP_WAIT_POLICY");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!find(environment, names[i]) && !(names[i][0] == 'G' && has_policy))
            larger[n + added++] = words[i];
    if (added > 0)
        execve("/proc/self/exe", argv, larger); /* without /proc, continue with the present environment */
    munmap(larger, bytes);
}

void mx_limits_before_libraries(int argc, char **argv, char **environment)
{
    char message[512];
    (void)argc;
    fill_closed();
    int threads = threads_of(find(environment, "OMP_NUM_THREADS"));
    int64_t bytes = START_BYTES + threads * BLAS_BUFFER + (find(environment, "PMI_RANK") ? LAUNCHED_BYTES : 0);
    char what[64];
    snprintf(what, sizeof what, "to start with %d thread%s", threads, threads == 1 ? "" : "s");
    if (!memory_is_there(bytes, what, message, sizeof message))
        refuse(find(environment, "PMI_RANK"), message);
    blas_threads = threads;
    set_environment(argv, environment);
}

/* ---- before MPI ---- */

static int number_in(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : 0; /* the first number of Slurm's "2(x4)" */
}

static int all_ranks(void)
{
    int n = number_in("PMI_SIZE");
    return n > 0 ? n : 1;
}

int mx_limits_launched_ranks(void)
{
    static const char *const names[] = {"MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};
    if (!getenv("PMI_FD") && !getenv("PMI_RANK") && !getenv("PMI_PORT"))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (number_in(names[i]) > 0)
            return number_in(names[i]) < all_ranks() ? number_in(names[i]) : all_ranks();
    return all_ranks() < 2 ? 1 : 2; /* unknown; at least two, because a single rank needs no shared memory */
}

bool mx_limits_all_ranks_are_here(void) { return mx_limits_launched_ranks() == all_ranks(); }

static mx_status check_files(int ranks)
{
    struct rlimit r;
    int wanted = ranks > 0 ? FILES_LAUNCHED + FILES_PER_RANK * ranks + all_ranks() : FILES_ALONE, unused = 0;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return MX_OK;
    if (r.rlim_cur < r.rlim_max) { /* a process may raise its soft limit */
        rlim_t before = r.rlim_cur;
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r) != 0)
            r.rlim_cur = before;
    }
    int listed = r.rlim_cur < MOST_LISTED + (rlim_t)wanted ? (int)r.rlim_cur : MOST_LISTED + wanted;
    for (int fd = 0; fd < listed && unused < wanted; fd++)
        unused += fcntl(fd, F_GETFD) < 0;
    if (unused >= wanted)
        return MX_OK;
    return mx_fail(
        MX_ERR_STATE,
        "the limit on open files, %lld, leaves %d, and %d are needed to start: raise it with 'ulimit -n 1024'",
        (long long)r.rlim_cur, unused, wanted);
}

static mx_status check_shared_memory(int ranks)
{
    int64_t wanted = ranks * RANK_SHM_BYTES, value;
    if (is_below(RLIMIT_FSIZE, RANK_FILE_BYTES, &value))
        return mx_fail(MX_ERR_STATE,
                       "the limit on the size of files, %lld KiB, is too low for the memory that ranks share: raise it "
                       "with 'ulimit -f unlimited'",
                       (long long)value / 1024);
    struct statvfs about;
    if (statvfs("/dev/shm", &about) != 0 || access("/dev/shm", R_OK | W_OK | X_OK) != 0)
        return mx_fail(MX_ERR_STATE,
                       "/dev/shm, where ranks share memory, cannot be used: %s; mount a tmpfs there that all may write "
                       "(mode 1777)",
                       strerror(errno));
    int64_t unused = (int64_t)about.f_bavail * (int64_t)about.f_frsize;
    if (unused >= wanted)
        return MX_OK;
    return mx_fail(
        MX_ERR_STATE,
        "/dev/shm has %lld KiB left, and %d rank%s need%s %lld MiB there: remove what old runs have left, or "
        "make it larger ('mount -o remount,size=1G /dev/shm'; of a container: --shm-size=1g)",
        (long long)unused / 1024, ranks, ranks == 1 ? "" : "s", ranks == 1 ? "s" : "", (long long)(wanted / MIB));
}

static void *wait_for_gate(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Starts this many threads at the same time and lets them end; returns the number that started. */
static int try_threads(int wanted)
{
    pthread_t *threads = calloc((size_t)wanted, sizeof *threads);
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    int64_t limit;
    int n = 0;
    if (!threads)
        return 0;
    pthread_mutex_lock(&gate);
    while (n < wanted && pthread_create(&threads[n], NULL, wait_for_gate, &gate) == 0)
        n++;
    if (is_below(RLIMIT_NPROC, 1024,
                 &limit)) /* wait, so that ranks that share a low limit count each other's threads */
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return n;
}

static mx_status fail_threads(int wanted, int had)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NPROC, &r) == 0 && r.rlim_cur != RLIM_INFINITY && r.rlim_cur < 4096)
        return mx_fail(MX_ERR_STATE,
                       "the limit on processes and threads of this user, %lld, allows %d of the %d threads that are "
                       "needed: raise it with 'ulimit -u 4096'",
                       (long long)r.rlim_cur, had, wanted);
    return mx_fail(MX_ERR_STATE,
                   "only %d of the %d threads that are needed can be started: raise the limits on threads (ulimit -u, "
                   "pids.max of the container) and addresses (ulimit -v), or take fewer threads (--threads)",
                   had, wanted);
}

static mx_status check_all(int ranks)
{
    MX_TRY(check_files(ranks));
    if (ranks > 0)
        MX_TRY(check_shared_memory(ranks));
    int had = try_threads(START_THREADS);
    return had == START_THREADS ? MX_OK : fail_threads(START_THREADS, had);
}

void mx_limits_check(void)
{
    int ranks = mx_limits_launched_ranks();
    if (check_all(ranks) != MX_OK)
        refuse(ranks > 0, mx_message());
}

mx_status mx_limits_check_threads(int threads)
{
    static int tried = 1;
    char what[64], message[512];
    if (threads <= tried)
        return MX_OK;
    snprintf(what, sizeof what, "for %d threads", threads);
    int more = threads > blas_threads ? threads - blas_threads : 0;
    if (more > 0 && !memory_is_there(more * BLAS_BUFFER, what, message, sizeof message))
        return mx_fail(MX_ERR_STATE, "%s, or take fewer threads (--threads)", message);
    int had = try_threads(threads - 1);
    if (had < threads - 1)
        return fail_threads(threads - 1, had);
    blas_threads += more;
    tried = threads;
    return MX_OK;
}
