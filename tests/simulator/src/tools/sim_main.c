/* sim_main.c - tenfold-sim: makes a simulated machine, tells the truth about it, breaks it on purpose.
 *
 * Owns the command line only. Next: sim_init.c, sim_truth.c, sim_inject.c, sim_boot.c do the work. */
#include "sim_commands.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char g_usage[] =
    "usage: tenfold-sim <command> [options]\n"
    "\n"
    "  init    --card NAME[,NAME...] [--cards N] [--driver VERSION] [--model NAME] [--uuid-seed NAME]\n"
    "          [--device-nodes required|ignored] [--profiles FOLDER] [--set KEY=VALUE]... [--force]      make a machine\n"
    "  boot    --config FILE [--dev FOLDER]                            init from a file of the same options, and make device nodes\n"
    "  truth   --json                                                  memory and GPU time per process and card\n"
    "  set     [--card INDEX] KEY=VALUE...                             change a model or card key of a running machine\n"
    "  inject  call --symbol NAME[,NAME...] --error CODE [--after N] [--times N|forever] [--pid PID]\n"
    "  inject  xid --card INDEX --xid CODE\n"
    "  inject  clear                                                   disarm all injected errors\n"
    "  info                                                            driver and CUDA version, cards\n"
    "  layout                                                          where things lie in the state file (for tests that damage it)\n"
    "\n"
    "  --state FILE names the machine; else $" SIM_STATE_VARIABLE ", else " SIM_DEFAULT_STATE "\n";

int fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("tenfold-sim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return 2;
}

const char *take_option(struct arguments *arguments, const char *name)
{
    const char *value = NULL;
    for (int i = 0; i < arguments->count; i++) {
        char *word = arguments->words[i];
        if (!word || strcmp(word, name) != 0 || i + 1 >= arguments->count || !arguments->words[i + 1])
            continue;
        if (value)
            continue; /* the first one counts; repeatable options are taken in a loop */
        value = arguments->words[i + 1];
        arguments->words[i] = arguments->words[i + 1] = NULL;
    }
    return value;
}

bool take_flag(struct arguments *arguments, const char *name)
{
    for (int i = 0; i < arguments->count; i++)
        if (arguments->words[i] && strcmp(arguments->words[i], name) == 0) {
            arguments->words[i] = NULL;
            return true;
        }
    return false;
}

const char *take_word(struct arguments *arguments)
{
    for (int i = 0; i < arguments->count; i++)
        if (arguments->words[i]) {
            const char *word = arguments->words[i];
            arguments->words[i] = NULL;
            return word;
        }
    return NULL;
}

bool parse_number(const char *text, long long least, long long most, long long *ret_number)
{
    char *end = NULL;
    long long number = text ? strtoll(text, &end, 0) : 0;
    if (!text || end == text || *end || number < least || number > most)
        return false;
    *ret_number = number;
    return true;
}

int attach(const char *path, struct sim_machine *machine)
{
    int error = state_attach(path, machine);
    if (error == -2 /* ENOENT */)
        return fail("no machine at '%s'; make one: tenfold-sim init --state %s --card a800-80gb", path, path);
    if (error == -71 /* EPROTO */)
        return fail("'%s' is not a machine of this version; make a new one with tenfold-sim init --force", path);
    if (error)
        return fail("cannot attach to '%s': %s", path, strerror(-error));
    return 0;
}

int main(int argument_count, char **words)
{
    static const struct {
        const char *name;
        int (*run)(const char *state_path, struct arguments *arguments);
    } commands[] = {{"init", command_init},     {"boot", command_boot}, {"truth", command_truth},
                    {"layout", command_layout}, {"set", command_set},       {"inject", command_inject}, {"info", command_info}};
    struct arguments arguments = {.count = argument_count - 1, .words = words + 1, .program = words[0]};
    if (take_flag(&arguments, "--help") || take_flag(&arguments, "-h")) {
        fputs(g_usage, stdout);
        return 0;
    }
    const char *path = take_option(&arguments, "--state");
    const char *name = take_word(&arguments);
    for (size_t i = 0; name && i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].run(path ? path : state_path(), &arguments);
    if (name)
        fprintf(stderr, "tenfold-sim: unknown command \"%s\"\n", name);
    fputs(g_usage, stderr);
    return 2;
}
