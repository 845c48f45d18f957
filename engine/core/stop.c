#define _GNU_SOURCE
#include "core/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Strongest first. */
static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
enum { KINDS = sizeof numbers / sizeof *numbers };

/* What the first of each says at once. The step that follows may take minutes. A terminal shows ^C before the line of
 * SIGINT. */
#define SAVES ": the run saves after this step, then it ends"
static const char *const lines[KINDS] = {
    "mxlua: SIGTERM" SAVES "; a second SIGTERM ends it at once\n",
    "\nmxlua: interrupted" SAVES "; a second Ctrl-C ends it at once\n",
    "mxlua: SIGHUP" SAVES "\n",
    "mxlua: SIGUSR1" SAVES "\n",
};

/* Launchers send a signal to a process and again to its group: signals this close together are the same request. */
static const int64_t SAME_MS = 300;

static volatile sig_atomic_t came[KINDS], ignored[KINDS], is_caught, says_so;
static int64_t first_ms[KINDS]; /* written only by the handler, with all signals blocked */
static void (*before_end)(void);

static int kind_of(int number)
{
    for (int i = 0; i < KINDS; i++)
        if (numbers[i] == number)
            return i;
    return KINDS - 1;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Ends the process as the signal would without a handler, when the handler returns. */
static void end_now(int number)
{
    if (before_end)
        before_end();
    signal(number, SIG_DFL);
    raise(number);
}

static void tell(const char *line)
{
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        says_so = 0;
}

static void on_stop(int number)
{
    int before = errno, kind = kind_of(number);
    int64_t now = now_ms();
    if (!came[kind]) {
        came[kind] = 1;
        first_ms[kind] = now;
        if (says_so)
            tell(lines[kind]);
    } else if ((number == SIGINT || number == SIGTERM) && now - first_ms[kind] > SAME_MS) {
        end_now(number);
    }
    errno = before;
}

static void set_handler(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    for (int i = 0; i < KINDS; i++)
        sigaddset(&action.sa_mask, numbers[i]);
    sigaction(number, &action, NULL);
}

void mx_stop_start(void)
{
    for (int i = 0; i < KINDS; i++) {
        struct sigaction action;
        ignored[i] = numbers[i] != SIGTERM && numbers[i] != SIGUSR1 && sigaction(numbers[i], NULL, &action) == 0 &&
                     action.sa_handler == SIG_IGN;
    }
    signal(SIGUSR1, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

void mx_stop_catch(bool speaks)
{
    says_so = speaks;
    is_caught = 1;
    for (int i = 0; i < KINDS; i++)
        if (!ignored[i])
            set_handler(numbers[i], on_stop);
    signal(SIGPIPE, SIG_IGN);
}

bool mx_stop_is_caught(void) { return is_caught; }

int mx_stop_requested(void)
{
    for (int i = 0; i < KINDS; i++)
        if (came[i])
            return numbers[i];
    return 0;
}

void mx_stop_request(int number) { came[kind_of(number)] = 1; }

void mx_stop_before_end(void (*leave)(void))
{
    before_end = leave;
    for (int i = 0; i < KINDS; i++)
        if (!ignored[i] && !is_caught && numbers[i] != SIGUSR1)
            set_handler(numbers[i], end_now);
}

void mx_stop_end_on_interrupt(void)
{
    if (before_end)
        set_handler(SIGINT, end_now);
    else
        signal(SIGINT, SIG_DFL);
}
