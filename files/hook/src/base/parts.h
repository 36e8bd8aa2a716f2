/* parts.h - one list of all that keeps something of its process or of the page: who tells them does not know them.
 *
 * A file puts itself into the list with TF_PART(); the linker gathers it in a section, so nothing runs and no place names them all. They are
 * told in the order of their folders and names, on which nothing may depend. */
#pragma once

#include <stdint.h>

/* Any may be NULL. */
struct tf_part {
    void (*forget)(void);       /* in a forked child, before its first call: nothing is its own, and no lock is held (container.c) */
    void (*page_changed)(void); /* limits were read anew (container.c) */
    uint64_t (*poll)(void);     /* a round of the helper thread (helper.c): nanoseconds until the next is worth it, UINT64_MAX for none */
};

#define TF_PART(...) \
    static const struct tf_part tf_this_part = {__VA_ARGS__}; \
    static const struct tf_part *const tf_listed_part __attribute__((used, section("tf_parts"))) = &tf_this_part

__attribute__((visibility("hidden"))) extern const struct tf_part *const __start_tf_parts[], *const __stop_tf_parts[];
#define TF_EACH_PART(part) for (const struct tf_part *const *part = __start_tf_parts; part < __stop_tf_parts; part++)
