/* sim_commands.h - tenfold-sim's commands, and the little argument parser that they share. Exit codes: 0 done, 2 refused. */
#ifndef TENFOLD_SIM_COMMANDS_H
#define TENFOLD_SIM_COMMANDS_H

#include "../core/state.h"

struct arguments {
    int count;
    char **words; /* NULL = taken */
    const char *program;
};

const char *take_option(struct arguments *arguments, const char *name); /* "--name value"; NULL if absent */
bool take_flag(struct arguments *arguments, const char *name);
const char *take_word(struct arguments *arguments); /* next word that nobody took; NULL = none left */
bool parse_number(const char *text, long long least, long long most, long long *ret_number);

/* Prints "tenfold-sim: ..." and returns 2. */
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* 0, or 2 after saying why. */
int attach(const char *path, struct sim_machine *machine);

int command_init(const char *path, struct arguments *arguments);
int command_boot(const char *path, struct arguments *arguments);
int command_truth(const char *path, struct arguments *arguments);
int command_layout(const char *path, struct arguments *arguments);
int command_info(const char *path, struct arguments *arguments);
int command_set(const char *path, struct arguments *arguments);
int command_inject(const char *path, struct arguments *arguments);

#endif
