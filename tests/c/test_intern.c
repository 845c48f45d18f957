/* Shared texts: one pointer for equal texts, which live as long as somebody holds them. */
#include "check.h"
#include "core/intern.h"

#include <stdio.h>
#include <string.h>

enum { MANY = 20000 };

static const char *text_of(int i)
{
    static char text[32];
    snprintf(text, sizeof text, "text %d", i);
    return text;
}

static void test_equal_texts_have_one_pointer(void)
{
    static const char *held[MANY];
    int before = mx_text_count();
    for (int i = 0; i < MANY; i++)
        held[i] = mx_text_hold(text_of(i));
    CHECK(mx_text_count() == before + MANY, "%d texts", mx_text_count() - before);
    for (int i = 0; i < MANY; i++) {
        const char *again = mx_text_hold(text_of(i));
        CHECK(again == held[i], "text %d has two pointers", i);
        CHECK(strcmp(again, text_of(i)) == 0, "text %d reads '%s'", i, again);
        mx_text_let_go(again);
    }
    for (int i = 0; i < MANY; i++)
        mx_text_let_go(held[i]);
    CHECK(mx_text_count() == before, "%d texts are left", mx_text_count() - before);
}

static void test_a_text_lives_while_it_is_held(void)
{
    int before = mx_text_count();
    const char *a = mx_text_hold("held"), *b = mx_text_again(a), *c = mx_text_hold("held");
    CHECK(a == b && b == c, "three pointers");
    mx_text_let_go(a);
    mx_text_let_go(b);
    CHECK(mx_text_count() == before + 1, "gone while held once");
    mx_text_let_go(c);
    CHECK(mx_text_count() == before, "still there");
}

static void test_interned_texts_stay(void)
{
    const char *held = mx_text_hold("a"), *interned = mx_intern("a");
    CHECK(held == interned, "two pointers");
    mx_text_let_go(held);
    mx_text_let_go(mx_text_hold("a"));
    CHECK(mx_intern("a") == interned, "moved");
    CHECK(mx_text_hold(NULL) == NULL && mx_text_again(NULL) == NULL, "NULL became a text");
    mx_text_let_go(NULL);
}

int main(void)
{
    test_equal_texts_have_one_pointer();
    test_a_text_lives_while_it_is_held();
    test_interned_texts_stay();
    return check_done();
}
