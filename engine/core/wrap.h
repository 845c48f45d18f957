/* Breaks long messages into lines, for people at a terminal. Logs and pipes get a message as one line. */
#ifndef MX_CORE_WRAP_H
#define MX_CORE_WRAP_H

enum { MX_WRAP_COLUMNS = 80 };

/* A copy of the text, freed by the caller, whose lines have at most so many columns if its words allow it. Blanks are
 * replaced by line breaks, and lines after the first begin with four blanks. A character of UTF-8 counts as one column.
 * NULL: no memory. */
char *mx_wrap(const char *text, int columns);

#endif
