/* The script's current line: "train.lua:12". Records of the tape and in-place changes store it for messages. */
#ifndef MX_CORE_SITE_H
#define MX_CORE_SITE_H

typedef struct mx_site {
    const char *file; /* interned (core/intern.h); NULL: unknown */
    int line;
} mx_site;

/* Set by the program that embeds the engine; NULL: lines are unknown. */
extern mx_site (*mx_site_ask)(void);

/* The line of the script that runs now, or the pinned line, as during backward. */
mx_site mx_site_now(void);
void mx_site_pin(void); /* pins the current line until mx_site_unpin */
void mx_site_unpin(void);

/* " at train.lua:12", or "" if the line is unknown. The text is valid until the fourth call after this one. */
const char *mx_site_text(mx_site site);

#endif
