#include "core/intern.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next; /* in its bucket */
    uint64_t hash;
    uint32_t refs; /* FOREVER: never freed */
    char text[];
} entry;

#define FOREVER UINT32_MAX

static entry **buckets; /* a power of 2, at least the number of texts */
static int n_buckets, n_texts;
static const char no_memory[] = "(out of memory)";

/* FNV-1a. */
static uint64_t hash_of(const char *text)
{
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

static entry **bucket_of(uint64_t hash) { return &buckets[(hash ^ hash >> 32) & (uint64_t)(n_buckets - 1)]; }

/* Without memory for more buckets, the table keeps the present ones. */
static void grow(void)
{
    entry **before = buckets;
    int n_before = n_buckets, more = n_before ? 2 * n_before : 256;
    entry **grown = calloc((size_t)more, sizeof *grown);
    if (!grown)
        return;
    buckets = grown;
    n_buckets = more;
    for (int i = 0; i < n_before; i++)
        for (entry *e = before[i], *next; e; e = next) {
            next = e->next;
            e->next = *bucket_of(e->hash);
            *bucket_of(e->hash) = e;
        }
    free(before);
}

static entry *find(const char *text, uint64_t hash)
{
    entry *e = n_buckets > 0 ? *bucket_of(hash) : NULL;
    while (e && (e->hash != hash || strcmp(e->text, text) != 0))
        e = e->next;
    return e;
}

/* The text's entry, created without references if missing; NULL: no memory. */
static entry *find_or_add(const char *text)
{
    uint64_t hash = hash_of(text);
    entry *e = find(text, hash);
    if (e)
        return e;
    if (n_texts >= n_buckets)
        grow();
    size_t bytes = strlen(text) + 1;
    e = n_buckets > 0 ? malloc(sizeof *e + bytes) : NULL;
    if (!e)
        return NULL;
    e->hash = hash;
    e->refs = 0;
    memcpy(e->text, text, bytes);
    e->next = *bucket_of(hash);
    *bucket_of(hash) = e;
    n_texts++;
    return e;
}

const char *mx_intern(const char *text)
{
    entry *e = find_or_add(text);
    if (!e)
        return no_memory;
    e->refs = FOREVER;
    return e->text;
}

const char *mx_text_hold(const char *text)
{
    entry *e = text ? find_or_add(text) : NULL;
    if (!e)
        return text ? no_memory : NULL;
    e->refs += e->refs < FOREVER;
    return e->text;
}

static entry *entry_of(const char *text) { return (entry *)(void *)((char *)(uintptr_t)text - offsetof(entry, text)); }

const char *mx_text_again(const char *held)
{
    if (held && held != no_memory)
        entry_of(held)->refs += entry_of(held)->refs < FOREVER;
    return held;
}

void mx_text_let_go(const char *text)
{
    if (!text || text == no_memory)
        return;
    entry *e = entry_of(text);
    if (e->refs == FOREVER || --e->refs > 0)
        return;
    entry **at = bucket_of(e->hash);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    n_texts--;
    free(e);
}

int mx_text_count(void) { return n_texts; }
