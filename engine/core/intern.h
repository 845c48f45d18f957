/* Shared texts: equal texts have one pointer, so that names are compared and kept cheaply. Script's thread only. */
#ifndef MX_CORE_INTERN_H
#define MX_CORE_INTERN_H

/* A copy of `text` that lives for the whole run. For texts of which there are few: lines of the script, shapes. */
const char *mx_intern(const char *text);

/* A copy of `text` (NULL: NULL) that lives until it has been let go as often as it was held: names that the user gives.
 * The same pointer as mx_intern gives. Where memory is short, a constant text says so. */
const char *mx_text_hold(const char *text);
const char *mx_text_again(const char *held); /* holds a held text (NULL: NULL) once more */
void mx_text_let_go(const char *text);       /* NULL is allowed */

/* How many texts there are now. */
int mx_text_count(void);

#endif
