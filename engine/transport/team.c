#define _GNU_SOURCE
#include "transport/team.h"

#include "core/clock.h"
#include "transport/board.h"
#include "transport/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The shared memory of one member. Only that member writes to it. */
struct mx_area {
    mx_flag begun, met, left, posted[MX_CHANNELS], done[MX_CHANNELS];
    mx_tag tags[2]; /* for collectives with odd and even numbers: no member is two ahead of another */
    _Alignas(4096) char slots[MX_CHANNELS][MX_SLOTS][MX_SLOT_BYTES];
    char notes[2][MX_NOTE_BYTES]; /* likewise: a member that meets a second time has read the notes of the first */
};

/* Messages: this rank's slots, the data received from each member, and the requests for both. */
struct mx_mail {
    char *slots[MX_CHANNELS][MX_SLOTS];
    char **received[MX_CHANNELS][MX_SLOTS];      /* for each member */
    MPI_Request *sends[MX_CHANNELS][MX_SLOTS];   /* for each member */
    MPI_Request *expects[MX_CHANNELS][MX_SLOTS]; /* for each member */
};

enum { MEET = 2, TAG = 100 };
static const double PATIENCE_S = 0.05; /* between two checks that the other rank still runs */

/* ---- making one ---- */

static mx_status share_memory(mx_team *team)
{
    MPI_Win window;
    void *own;
    MX_TRY(mx_mpi_check(MPI_Win_allocate_shared(sizeof(mx_area), 1, MPI_INFO_NULL, team->comm, &own, &window),
                        "memory shared between ranks"));
    memset(own, 0, offsetof(mx_area, slots));
    team->areas = calloc((size_t)team->n, sizeof(mx_area *));
    if (!team->areas)
        return mx_fail(MX_ERR_MEMORY, "no memory for a team of %d ranks", team->n);
    for (int i = 0; i < team->n; i++) {
        MPI_Aint bytes;
        int unit;
        MX_TRY(mx_mpi_check(MPI_Win_shared_query(window, i, &bytes, &unit, (void *)&team->areas[i]),
                            "memory shared between ranks"));
    }
    MX_TRY(mx_mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window), "memory shared between ranks"));
    return mx_mpi_check(MPI_Barrier(team->comm), "memory shared between ranks"); /* after it, all areas are cleared */
}

static mx_status new_mail(mx_team *team)
{
    size_t n = (size_t)team->n;
    mx_mail *mail = team->mail = calloc(1, sizeof *mail);
    bool ok = mail != NULL;
    for (int c = 0; ok && c < MX_CHANNELS; c++)
        for (int s = 0; ok && s < MX_SLOTS; s++) {
            mail->slots[c][s] = malloc(MX_SLOT_BYTES);
            mail->received[c][s] = calloc(n, sizeof(char *));
            mail->sends[c][s] = malloc(n * sizeof(MPI_Request));
            mail->expects[c][s] = malloc(n * sizeof(MPI_Request));
            ok = mail->slots[c][s] && mail->received[c][s] && mail->sends[c][s] && mail->expects[c][s];
            for (size_t i = 0; ok && i < n; i++)
                mail->sends[c][s][i] = mail->expects[c][s][i] = MPI_REQUEST_NULL;
        }
    return ok ? MX_OK : mx_fail(MX_ERR_MEMORY, "no memory for messages between %d ranks", team->n);
}

static mx_status find_ranks(mx_team *team)
{
    int mine = mx_rank();
    team->ranks = calloc((size_t)team->n, sizeof(int));
    if (!team->ranks)
        return mx_fail(MX_ERR_MEMORY, "no memory for a team of %d ranks", team->n);
    return mx_mpi_check(MPI_Allgather(&mine, 1, MPI_INT, team->ranks, 1, MPI_INT, team->comm), "naming the ranks");
}

mx_status mx_team_new(MPI_Comm comm, bool shared, mx_team **out)
{
    mx_team *team = calloc(1, sizeof *team);
    *out = team;
    if (!team)
        return mx_fail(MX_ERR_MEMORY, "no memory for a team of ranks");
    team->comm = comm;
    MPI_Comm_size(comm, &team->n);
    MPI_Comm_rank(comm, &team->me);
    MX_TRY(find_ranks(team));
    return shared ? share_memory(team) : new_mail(team);
}

/* ---- waiting ---- */

static mx_status await_flag(const mx_team *team, mx_flag *flag, uint32_t value, int member)
{
    while (!mx_flag_wait(flag, value, PATIENCE_S)) {
        mx_status status = mx_board_check(team->ranks[member]);
        if (status != MX_OK && !mx_flag_reached(flag, value)) /* the other rank may have posted before it ended */
            return status;
    }
    return MX_OK;
}

/* Spins briefly, then sleeps between the tests, because the other rank may compute for a long time. */
static mx_status rest(double start, double *checked, int world_rank)
{
    double now = mx_now();
    if (now - start > 100e-6)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    if (now - *checked <= PATIENCE_S)
        return MX_OK;
    *checked = now;
    return mx_board_check(world_rank);
}

static mx_status await_request(const mx_team *team, MPI_Request *request, int member)
{
    double start = mx_now(), checked = start;
    for (;;) {
        int finished = 0;
        MX_TRY(mx_mpi_check(MPI_Test(request, &finished, MPI_STATUS_IGNORE), "exchange between nodes"));
        if (finished)
            return MX_OK;
        MX_TRY(rest(start, &checked, team->ranks[member]));
    }
}

/* ---- meeting ---- */

typedef struct greeting {
    uint64_t group; /* identifies the ranks that meet */
    char text[240];
} greeting;

static uint64_t hash_ranks(const int *ranks, int n)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < n; i++)
        hash = (hash ^ (uint64_t)ranks[i]) * 1099511628211u;
    return hash;
}

static mx_status await_greeting(int world_rank, greeting *theirs)
{
    double start = mx_now(), checked = start;
    for (;;) {
        int come = 0;
        MX_TRY(mx_mpi_check(MPI_Iprobe(world_rank, MEET, MPI_COMM_WORLD, &come, MPI_STATUS_IGNORE), "meeting"));
        if (come)
            return mx_mpi_check(
                MPI_Recv(theirs, sizeof *theirs, MPI_BYTE, world_rank, MEET, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                "meeting");
        MX_TRY(rest(start, &checked, world_rank));
    }
}

mx_status mx_meet(const int *ranks, int n, int me)
{
    greeting ours = {.group = hash_ranks(ranks, n)}, theirs;
    snprintf(ours.text, sizeof ours.text, "%s", mx_board_pending());
    for (int step = 1; step < n;
         step *= 2) { /* after each step, a message stands for twice as many ranks that have arrived */
        int to = ranks[(me + step) % n], from = ranks[(me + n - step) % n];
        MX_TRY(mx_mpi_check(MPI_Bsend(&ours, sizeof ours, MPI_BYTE, to, MEET, MPI_COMM_WORLD), "meeting"));
        MX_TRY(await_greeting(from, &theirs));
        if (theirs.group != ours.group)
            return mx_fail(MX_ERR_VALUE,
                           "the ranks differ: rank %d does %s, rank %d does %s; all ranks of an axis must make the "
                           "same collective calls in the same order",
                           mx_rank(), ours.text, from, theirs.text);
    }
    return MX_OK;
}

/* ---- tags ---- */

static bool same_tag(const mx_tag *a, const mx_tag *b, bool strict)
{
    return mx_collective_equal(&a->what, &b->what) && a->count == b->count && a->shapes == b->shapes &&
           (!strict || strcmp(a->site, b->site) == 0);
}

/* What a tag's text leaves out. */
static void print_details(const mx_tag *tag, char *text, size_t bytes)
{
    const mx_collective *what = &tag->what;
    int n = snprintf(text, bytes, " [shape %s", mx_shape_text(&tag->shape));
    if (what->kind == MX_ALL_REDUCE || what->kind == MX_REDUCE_SCATTER)
        n += snprintf(text + n, bytes - (size_t)n, ", %s",
                      what->fold == MX_FOLD_MAX ? "max" : (what->scale == 1 ? "sum" : "mean"));
    if (what->kind == MX_ALL_GATHER || what->kind == MX_REDUCE_SCATTER)
        n += snprintf(text + n, bytes - (size_t)n, ", dim %d", 1 + tag->split + tag->concat); /* one of them is 0 */
    if (what->kind == MX_ALL_TO_ALL)
        n += snprintf(text + n, bytes - (size_t)n, ", split %d, concat %d", 1 + tag->split, 1 + tag->concat);
    if (what->kind == MX_BROADCAST)
        n += snprintf(text + n, bytes - (size_t)n, ", root %d", what->root);
    if (what->kind == MX_PERMUTE)
        n += snprintf(text + n, bytes - (size_t)n, ", shift %d", what->shift);
    snprintf(text + n, bytes - (size_t)n, "]");
}

static mx_status differ(const mx_team *team, int member, const mx_tag *theirs, const mx_tag *ours)
{
    char our_details[160] = "", their_details[160] = "";
    if (strcmp(ours->text, theirs->text) == 0) {
        print_details(ours, our_details, sizeof our_details);
        print_details(theirs, their_details, sizeof their_details);
    }
    return mx_fail(MX_ERR_VALUE,
                   "the ranks differ: rank %d does %s%s%s%s, rank %d does %s%s%s%s; all ranks of an axis must make the "
                   "same collective calls in the same order",
                   team->ranks[team->me], ours->text, our_details, ours->site[0] ? " at " : "", ours->site,
                   team->ranks[member], theirs->text, their_details, theirs->site[0] ? " at " : "", theirs->site);
}

static mx_status compare_in_memory(mx_team *team, const mx_tag *tag, bool strict)
{
    uint32_t number = ++team->begun;
    mx_area *own = team->areas[team->me];
    own->tags[number % 2] = *tag;
    mx_flag_set(&own->begun, number);
    for (int i = 0; i < team->n; i++)
        if (i != team->me)
            MX_TRY(await_flag(team, &team->areas[i]->begun, number, i));
    for (int i = 0; i < team->n; i++)
        if (!same_tag(&team->areas[i]->tags[number % 2], tag, strict))
            return differ(team, i, &team->areas[i]->tags[number % 2], tag);
    return MX_OK;
}

static mx_status compare_by_messages(const mx_team *team, const mx_tag *tag)
{
    mx_tag *all = malloc((size_t)team->n * sizeof *all);
    if (!all)
        return mx_fail(MX_ERR_MEMORY, "no memory for %d tags", team->n);
    mx_status status = mx_meet(team->ranks, team->n, team->me); /* MPI's barrier would wait for a rank that has ended */
    if (status == MX_OK)
        status = mx_mpi_check(MPI_Allgather(tag, sizeof *tag, MPI_BYTE, all, sizeof *tag, MPI_BYTE, team->comm),
                              "comparing collectives");
    for (int i = 0; status == MX_OK && i < team->n; i++)
        if (!same_tag(&all[i], tag, true))
            status = differ(team, i, &all[i], tag);
    free(all);
    return status;
}

mx_status mx_team_begin(mx_team *team, const mx_tag *tag, bool strict)
{
    if (team->areas)
        return compare_in_memory(team, tag, strict);
    return strict ? compare_by_messages(team, tag) : MX_OK;
}

/* ---- notes ---- */

/* Sets this rank's flag and waits for the flags of all others. */
static mx_status gather_at(const mx_team *team, size_t flag, uint32_t number)
{
    mx_flag_set((mx_flag *)((char *)team->areas[team->me] + flag), number);
    for (int step = 1; step < team->n; step++) {
        int other = (team->me + step) % team->n;
        MX_TRY(await_flag(team, (mx_flag *)((char *)team->areas[other] + flag), number, other));
    }
    return MX_OK;
}

mx_status mx_team_meet(mx_team *team, const void *note, size_t bytes)
{
    uint32_t number = ++team->met;
    memcpy(team->areas[team->me]->notes[number % 2], note, bytes);
    return gather_at(team, offsetof(mx_area, met), number);
}

const void *mx_team_note(const mx_team *team, int member) { return team->areas[member]->notes[team->met % 2]; }

mx_status mx_team_leave(mx_team *team) { return gather_at(team, offsetof(mx_area, left), team->met); }

/* ---- chunks ---- */

mx_status mx_team_open(mx_team *team, int channel, char **slot)
{
    uint32_t number = team->opened[channel]++; /* number of the chunk, from 0 */
    if (team->areas) {
        for (int i = 0; i < team->n; i++) /* at first `done` is 0, and number + 1 - MX_SLOTS not above it */
            if (i != team->me)
                MX_TRY(await_flag(team, &team->areas[i]->done[channel], number + 1 - MX_SLOTS, i));
        *slot = team->areas[team->me]->slots[channel][number % MX_SLOTS];
        return MX_OK;
    }
    mx_mail *mail = team->mail;
    for (int i = 0; i < team->n; i++)
        MX_TRY(await_request(team, &mail->sends[channel][number % MX_SLOTS][i], i));
    *slot = mail->slots[channel][number % MX_SLOTS];
    return MX_OK;
}

static int current(const mx_team *team, int channel) { return (int)((team->opened[channel] - 1) % MX_SLOTS); }

mx_status mx_team_give(mx_team *team, int channel, int to, size_t offset, size_t bytes)
{
    if (team->areas)
        return MX_OK;
    int s = current(team, channel);
    return mx_mpi_check(MPI_Isend(team->mail->slots[channel][s] + offset, (int)bytes, MPI_BYTE, to, TAG + channel,
                                  team->comm, &team->mail->sends[channel][s][to]),
                        "sending between nodes");
}

mx_status mx_team_expect(mx_team *team, int channel, int from, size_t bytes)
{
    if (team->areas)
        return MX_OK;
    int s = current(team, channel);
    char **place = &team->mail->received[channel][s][from];
    if (!*place)
        *place = malloc(MX_SLOT_BYTES);
    if (!*place)
        return mx_fail(MX_ERR_MEMORY, "no memory for messages between %d ranks", team->n);
    return mx_mpi_check(MPI_Irecv(*place, (int)bytes, MPI_BYTE, from, TAG + channel, team->comm,
                                  &team->mail->expects[channel][s][from]),
                        "receiving between nodes");
}

void mx_team_post(mx_team *team, int channel)
{
    if (team->areas)
        mx_flag_set(&team->areas[team->me]->posted[channel], team->opened[channel]);
}

mx_status mx_team_take(mx_team *team, int channel, int from, size_t offset, const void **data)
{
    uint32_t number = team->done[channel];
    if (team->areas) {
        mx_area *area = team->areas[from];
        MX_TRY(await_flag(team, &area->posted[channel], number + 1, from));
        *data = area->slots[channel][number % MX_SLOTS] + offset;
        return MX_OK;
    }
    MX_TRY(await_request(team, &team->mail->expects[channel][number % MX_SLOTS][from], from));
    *data = team->mail->received[channel][number % MX_SLOTS][from];
    return MX_OK;
}

void mx_team_done(mx_team *team, int channel)
{
    team->done[channel]++;
    if (team->areas)
        mx_flag_set(&team->areas[team->me]->done[channel], team->done[channel]);
}

mx_status mx_team_finish(mx_team *team)
{
    for (int channel = 0; team->mail && channel < MX_CHANNELS; channel++)
        for (int s = 0; s < MX_SLOTS; s++)
            for (int i = 0; i < team->n; i++)
                MX_TRY(await_request(team, &team->mail->sends[channel][s][i], i));
    return MX_OK;
}
