/* sim_profile.h - from the profile files to a machine's state: cards, driver, models. */
#ifndef TENFOLD_SIM_PROFILE_H
#define TENFOLD_SIM_PROFILE_H

#include "../core/state.h"

/* Each returns 0, or -1 with a message in error (what, where, what to do). */
int profile_read_card(const char *folder, const char *name, struct sim_card *card, struct sim_state *state, char *error, size_t error_bytes);
int profile_read_driver(const char *folder, const char *wanted, struct sim_state *state, char *error, size_t error_bytes);
int profile_read_model(const char *folder, struct sim_state *state, char *error, size_t error_bytes);

/* One `key=value` of model.conf or of a card. */
int profile_set(struct sim_state *state, struct sim_card *card, const char *key, const char *value, char *error, size_t error_bytes);

#endif
