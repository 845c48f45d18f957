#include "core/scope.h"

#include <stdlib.h>

static mx_scope *innermost;

mx_scope *mx_scope_current(void) { return innermost; }

mx_scope *mx_scope_swap(mx_scope *scope)
{
    mx_scope *previous = innermost;
    innermost = scope;
    return previous;
}

mx_scope *mx_scope_find(uint64_t id)
{
    mx_scope *scope = innermost;
    while (scope && scope->id != id)
        scope = scope->parent;
    return scope;
}

mx_status mx_scope_open(mx_scope **out)
{
    mx_scope *scope = calloc(1, sizeof *scope);
    if (!scope)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a scope");
    static uint64_t opened;
    scope->id = ++opened;
    scope->parent = innermost;
    innermost = scope;
    *out = scope;
    return MX_OK;
}

void mx_scope_add(mx_scope *scope, mx_tensor *t)
{
    mx_retain(t);
    t->scope = scope;
    t->scope_previous = NULL;
    t->scope_next = scope->first;
    if (scope->first)
        scope->first->scope_previous = t;
    scope->first = t;
}

void mx_scope_remove(mx_tensor *t)
{
    if (!t->scope)
        return;
    if (t->scope_previous)
        t->scope_previous->scope_next = t->scope_next;
    else
        t->scope->first = t->scope_next;
    if (t->scope_next)
        t->scope_next->scope_previous = t->scope_previous;
    t->scope = NULL;
    t->scope_previous = t->scope_next = NULL;
    mx_release(t);
}

void mx_scope_escape(mx_tensor *t)
{
    mx_scope *parent = t->scope ? t->scope->parent : NULL;
    mx_retain(t);
    mx_scope_remove(t);
    if (parent)
        mx_scope_add(parent, t);
    mx_release(t);
}

void mx_scope_keep(mx_tensor *t)
{
    mx_retain(t);
    mx_scope_remove(t);
    mx_release(t);
}

static void close_one(mx_scope *scope)
{
    while (scope->first) {
        mx_tensor *t = scope->first;
        t->released = true;
        if (t->held == 0)
            mx_tensor_drop(t);
        if (t->node && mx_tensor_left)
            mx_tensor_left(t);
        mx_scope_remove(t);
    }
    innermost = scope->parent;
    free(scope);
}

mx_status mx_scope_close(mx_scope *scope)
{
    mx_scope *open = innermost;
    while (open && open != scope)
        open = open->parent;
    if (!open)
        return mx_fail(MX_ERR_STATE, "a scope was closed that is not open");
    while (innermost != scope)
        close_one(innermost);
    close_one(scope);
    return MX_OK;
}
