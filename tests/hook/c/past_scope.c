/* past_scope.c - loads a library in one of the ways that decide where its symbols are looked for: past_scope dlopen|deepbind|dlmopen LIBRARY.
 *
 * Prints "linked TOTAL, looked up TOTAL": what cuMemGetInfo calls the card's total where the library is linked with the driver, and where it
 * looks the function up. The library is scoped_library.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef size_t total_function(void);

static void *load(const char *way, const char *library)
{
    if (strcmp(way, "dlmopen") == 0)
        return dlmopen(LM_ID_NEWLM, library, RTLD_NOW);
    return dlopen(library, RTLD_NOW | RTLD_LOCAL | (strcmp(way, "deepbind") == 0 ? RTLD_DEEPBIND : 0));
}

int main(int count, char **arguments)
{
    void *handle = count == 3 ? load(arguments[1], arguments[2]) : NULL;
    if (!handle) {
        fprintf(stderr, "%s\n", count == 3 ? dlerror() : "usage: past_scope dlopen|deepbind|dlmopen LIBRARY");
        return 1;
    }
    total_function *linked = (total_function *)dlsym(handle, "linked_total"), *looked_up = (total_function *)dlsym(handle, "looked_up_total");
    if (!linked || !looked_up)
        return 1;
    printf("linked %zu, looked up %zu\n", linked(), looked_up());
    return 0;
}
