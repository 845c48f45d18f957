/* A folder of its own for a test's files, and damage done to files. */
#ifndef MX_TESTS_TEMPORARY_H
#define MX_TESTS_TEMPORARY_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char temporary_folder[64];

static inline void temporary_make(void)
{
    snprintf(temporary_folder, sizeof temporary_folder, "/tmp/mxlua-test-XXXXXX");
    if (!mkdtemp(temporary_folder)) {
        perror("mkdtemp");
        exit(EXIT_FAILURE);
    }
}

/* The path of a file in the folder; valid until the fourth call after this one. */
static inline const char *temporary_path(const char *name)
{
    static char paths[4][512];
    static int next;
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s/%s", temporary_folder, name);
    return paths[next];
}

/* How many files are in the folder, whatever they are called. */
static inline int temporary_files(void)
{
    DIR *folder = opendir(temporary_folder);
    int count = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return count;
}

/* Removes the files and the folder, which has no folders inside. */
static inline void temporary_remove(void)
{
    DIR *folder = opendir(temporary_folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlink(temporary_path(entry->d_name));
    if (folder)
        closedir(folder);
    rmdir(temporary_folder);
}

static inline void spill(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(EXIT_FAILURE);
    }
}

static inline char *slurp(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    *bytes = 0;
    if (file && fseek(file, 0, SEEK_END) == 0) {
        *bytes = (size_t)ftell(file);
        rewind(file);
        data = malloc(*bytes + 1);
        if (data && fread(data, 1, *bytes, file) != *bytes)
            *bytes = 0;
    }
    if (file)
        fclose(file);
    return data;
}

#endif
