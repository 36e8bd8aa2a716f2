/* fake_library.c - a library that has names of the driver and is none: a second copy, cuDNN, a test double. */
int cuMemAlloc_v2(void) { return 0; }
int cudnnCreate(void) { return 0; }
