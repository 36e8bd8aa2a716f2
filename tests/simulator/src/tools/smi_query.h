/* smi_query.h - nvidia-smi's fields: one table for --query-gpu. */
#ifndef TENFOLD_SIM_SMI_QUERY_H
#define TENFOLD_SIM_SMI_QUERY_H

#include "smi_nvml.h"

struct smi_format {
    bool is_csv, without_header, without_units;
};

/* 0, or 2 after naming the field that does not exist. */
int smi_print_header(const char *fields, const struct smi_format *format);
void smi_print_row(const struct smi_card *card, const char *fields, const struct smi_format *format);

#endif
