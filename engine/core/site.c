#include "core/site.h"

#include <stdbool.h>
#include <stdio.h>

mx_site (*mx_site_ask)(void);

static mx_site pinned;
static bool is_pinned;

mx_site mx_site_now(void)
{
    if (is_pinned)
        return pinned;
    return mx_site_ask ? mx_site_ask() : (mx_site){0};
}

void mx_site_pin(void)
{
    pinned = mx_site_now();
    is_pinned = true;
}

void mx_site_unpin(void) { is_pinned = false; }

const char *mx_site_text(mx_site site)
{
    enum { TEXTS = 4 };
    static _Thread_local char texts[TEXTS][128];
    static _Thread_local int next;
    char *text = texts[next = (next + 1) % TEXTS];
    text[0] = '\0';
    if (site.file)
        snprintf(text, sizeof texts[0], " at %s:%d", site.file, site.line);
    return text;
}
