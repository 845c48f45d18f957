/* Where the script is: "train.lua:12". Records of the tape and changes in place remember it for messages. */
#ifndef MX_CORE_SITE_H
#define MX_CORE_SITE_H

typedef struct mx_site {
    const char *file; /* interned (core/intern.h); NULL: unknown */
    int line;
} mx_site;

/* Asks the program that embeds the engine; NULL: nobody knows. */
extern mx_site (*mx_site_ask)(void);

/* The line of the script that runs now. While a site is pinned, as during backward, that one. */
mx_site mx_site_now(void);
void mx_site_pin(void); /* until mx_site_unpin, what is asked for is this site */
void mx_site_unpin(void);

/* " at train.lua:12", or "" where the site is unknown. The text is valid until the fourth call after this one. */
const char *mx_site_text(mx_site site);

#endif
