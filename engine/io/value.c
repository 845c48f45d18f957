#include "io/value.h"

#include <stdlib.h>
#include <string.h>

const char *mx_kind_name(mx_kind kind)
{
    static const char *const names[] = {"null", "a boolean", "an integer", "a number", "a string", "an array", "a map"};
    return names[kind];
}

void mx_value_free(mx_value *value)
{
    if (value->kind == MX_STRING) {
        free(value->text);
    } else if (value->kind == MX_ARRAY || value->kind == MX_MAP) {
        for (size_t i = 0; i < value->count; i++) {
            free(value->entries[i].key);
            mx_value_free(&value->entries[i].value);
        }
        free(value->entries);
    }
    *value = (mx_value){.kind = MX_NULL};
}

static char *copy_text(const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

mx_status mx_value_set_string(mx_value *value, const char *text, size_t length)
{
    char *copy = copy_text(text, length);
    if (!copy)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a string of %zu bytes", length);
    value->kind = MX_STRING;
    value->text = copy;
    value->length = length;
    return MX_OK;
}

mx_status mx_value_append(mx_value *container, const char *key, mx_entry **out)
{
    if (container->count == container->room) {
        size_t room = container->room ? 2 * container->room : 2;
        mx_entry *entries = realloc(container->entries, room * sizeof *entries);
        if (!entries)
            return mx_fail(MX_ERR_MEMORY, "out of memory for %zu values", room);
        container->entries = entries;
        container->room = room;
    }
    mx_entry *entry = &container->entries[container->count];
    *entry = (mx_entry){0};
    if (key) {
        entry->key = copy_text(key, strlen(key));
        if (!entry->key)
            return mx_fail(MX_ERR_MEMORY, "out of memory for a key");
    }
    container->count++;
    *out = entry;
    return MX_OK;
}

const mx_value *mx_value_get(const mx_value *map, const char *key)
{
    if (map->kind == MX_MAP)
        for (size_t i = 0; i < map->count; i++)
            if (strcmp(map->entries[i].key, key) == 0)
                return &map->entries[i].value;
    return NULL;
}

/* Equal keys stay in their order, so that the second one is reported as the duplicate. */
static int by_key(const void *a, const void *b)
{
    const mx_entry *x = *(const mx_entry *const *)a, *y = *(const mx_entry *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x > y) - (x < y);
}

mx_status mx_value_sorted(const mx_value *map, const mx_entry ***out)
{
    const mx_entry **sorted = malloc((map->count + 1) * sizeof *sorted);
    if (!sorted)
        return mx_fail(MX_ERR_MEMORY, "out of memory to sort %zu keys", map->count);
    for (size_t i = 0; i < map->count; i++)
        sorted[i] = &map->entries[i];
    qsort(sorted, map->count, sizeof *sorted, by_key);
    *out = sorted;
    return MX_OK;
}
