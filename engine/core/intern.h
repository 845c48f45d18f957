/* Interned texts: equal texts have one pointer, so names can be compared and stored cheaply. Script's thread only. */
#ifndef MX_CORE_INTERN_H
#define MX_CORE_INTERN_H

/* A copy of `text` that lives for the whole run. For a small number of different texts: lines of the script, shapes. */
const char *mx_intern(const char *text);

/* A copy of `text` (NULL: NULL) that lives until it has been released as often as it was held: for names that the user
 * gives. The pointer is the same as that of mx_intern. Without memory, returns a constant text that says so. */
const char *mx_text_hold(const char *text);
const char *mx_text_again(const char *held); /* holds a held text (NULL: NULL) once more */
void mx_text_let_go(const char *text);       /* NULL is allowed */

/* The number of texts now. */
int mx_text_count(void);

#endif
