#include "checkpoint/writer.h"

#include "core/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mx_writer {
    mx_job job;
    char *path;
    int64_t count;
    char **names;
    mx_tensor **tensors;
    mx_value attributes;
    bool ended; /* the job is finished and has been waited for */
    mx_status status;
    char message[1024]; /* of a status other than MX_OK */
};

static mx_lane *lane;

/* ---- on the writer's thread ---- */

static mx_status fill(mx_h5_writer *file, const mx_writer *w)
{
    for (int64_t i = 0; i < w->count; i++)
        MX_TRY(mx_h5_put(file, w->names[i], w->tensors[i]));
    return mx_h5_put_attributes(file, &w->attributes);
}

static mx_status write_file(const mx_writer *w)
{
    mx_h5_writer *file;
    MX_TRY(mx_h5_create(w->path, &file));
    mx_status status = fill(file, w);
    if (status == MX_OK)
        return mx_h5_commit(file);
    mx_h5_abort(file);
    return status;
}

/* The job itself never fails: the writer keeps the failure until it is asked. */
static mx_status run(mx_job *job)
{
    mx_writer *w = (mx_writer *)job;
    w->status = write_file(w);
    if (w->status != MX_OK)
        snprintf(w->message, sizeof w->message, "%s", mx_message());
    return MX_OK;
}

/* ---- on the script's thread ---- */

static void release_tensors(mx_writer *w)
{
    for (int64_t i = 0; i < w->count; i++)
        if (w->tensors[i])
            mx_release(w->tensors[i]);
    for (int64_t i = 0; i < w->count; i++)
        w->tensors[i] = NULL;
}

static void job_done(mx_job *job)
{
    mx_writer *w = (mx_writer *)job;
    w->ended = true;
    release_tensors(w);
}

static mx_job_about about(const mx_job *job)
{
    const mx_writer *w = (const mx_writer *)job;
    mx_job_about a = {.kind = "write", .where = w->path, .tensors = (int)w->count};
    for (int64_t i = 0; i < w->count; i++)
        a.bytes += (double)mx_bytes(w->tensors[i]);
    return a;
}

static void destroy(mx_writer *w)
{
    if (w->tensors)
        release_tensors(w);
    for (int64_t i = 0; w->names && i < w->count; i++)
        free(w->names[i]);
    free(w->names);
    free(w->tensors);
    free(w->path);
    mx_value_free(&w->attributes);
    free(w);
}

static mx_status copy_attributes(mx_value *to, const mx_value *from)
{
    if (from->kind != MX_MAP)
        return mx_fail(MX_ERR_VALUE, "attributes are %s; expected a map", mx_kind_name(from->kind));
    to->kind = MX_MAP;
    for (size_t i = 0; i < from->count; i++) {
        mx_entry *entry;
        MX_TRY(mx_value_append(to, from->entries[i].key, &entry));
        const mx_value *value = &from->entries[i].value;
        if (value->kind == MX_STRING)
            MX_TRY(mx_value_set_string(&entry->value, value->text, value->length));
        else if (value->kind == MX_INT || value->kind == MX_FLOAT)
            entry->value = *value;
        else
            return mx_fail(MX_ERR_VALUE, "attribute '%.200s' is %s; expected a string or a number",
                           from->entries[i].key, mx_kind_name(value->kind));
    }
    return MX_OK;
}

static mx_status copy_names(mx_writer *w, const char *const *names)
{
    for (int64_t i = 0; i < w->count; i++) {
        w->names[i] = strdup(names[i]);
        if (!w->names[i])
            return mx_fail(MX_ERR_MEMORY, "out of memory for the names of %lld tensors", (long long)w->count);
    }
    return MX_OK;
}

static mx_status check_tensors(const mx_writer *w)
{
    for (int64_t i = 0; i < w->count; i++) {
        MX_TRY(mx_tensor_wait(w->tensors[i], false));
        if (w->tensors[i]->released || !mx_has_values(w->tensors[i]))
            return mx_fail(MX_ERR_STATE,
                           "'%s': tensor '%.200s' has no values to write: it was released, or is on a simulated device",
                           w->path, w->names[i]);
    }
    return MX_OK;
}

static mx_status start(mx_writer *w, const char *const *names, const mx_value *attributes)
{
    if (!w->path || !w->names)
        return mx_fail(MX_ERR_MEMORY, "out of memory for the names of %lld tensors", (long long)w->count);
    MX_TRY(copy_names(w, names));
    MX_TRY(copy_attributes(&w->attributes, attributes));
    MX_TRY(check_tensors(w));
    if (!lane)
        MX_TRY(mx_lane_new("mx-writer", &lane));
    w->job.run = run;
    w->job.done = job_done;
    w->job.describe = about;
    w->job.lane = lane;
    return mx_lane_submit(&w->job);
}

mx_status mx_writer_start(const char *path, int64_t count, const char *const *names, mx_tensor *const *tensors,
                          const mx_value *attributes, mx_writer **out)
{
    *out = NULL;
    mx_writer *w = calloc(1, sizeof *w);
    mx_tensor **held = calloc((size_t)count + 1, sizeof *held);
    if (!w || !held) {
        for (int64_t i = 0; i < count; i++)
            mx_release(tensors[i]);
        free(w);
        free(held);
        return mx_fail(MX_ERR_MEMORY, "out of memory for the names of %lld tensors", (long long)count);
    }
    for (int64_t i = 0; i < count; i++)
        held[i] = tensors[i];
    w->tensors = held;
    w->count = count;
    w->path = strdup(path);
    w->names = calloc((size_t)count + 1, sizeof *w->names);
    mx_status status = start(w, names, attributes);
    if (status == MX_OK)
        *out = w;
    else
        destroy(w);
    return status;
}

bool mx_writer_finished(const mx_writer *writer)
{
    return writer->ended || atomic_load(&writer->job.state) == MX_JOB_FINISHED;
}

mx_status mx_writer_wait(mx_writer *writer)
{
    if (!writer->ended)
        MX_TRY(mx_job_wait(&writer->job));
    return writer->status == MX_OK ? MX_OK : mx_fail(writer->status, "%s", writer->message);
}

void mx_writer_free(mx_writer *writer)
{
    if (!writer)
        return;
    (void)mx_writer_wait(writer);
    destroy(writer);
}
