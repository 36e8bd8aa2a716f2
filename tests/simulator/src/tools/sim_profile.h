/* sim_profile.h - from the profile files to a machine's state: cards, driver, models. */
#ifndef TENFOLD_SIM_PROFILE_H
#define TENFOLD_SIM_PROFILE_H

#include "../core/state.h"

/* Each returns NULL, or what is wrong, where, and what to do; that text is good until the next call. */
const char *profile_read_card(const char *folder, const char *name, struct sim_card *card, struct sim_state *state);
const char *profile_read_driver(const char *folder, const char *wanted, struct sim_state *state);
const char *profile_read_model(const char *folder, const char *name, struct sim_state *state, struct sim_card *card);

/* One "key=value" of a model or, with a card, of a card. */
const char *profile_set(struct sim_state *state, struct sim_card *card, const char *word);

#endif
